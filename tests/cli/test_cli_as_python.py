"""A script cannot tell whether python or layerstep runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from test_cli_run import layerstep_run, run

TELLS = '''\
"""Its words."""
import json, os, pickle, sys
import beside


class Thing:
    pass


names = ("__name__", "__file__", "__doc__", "__package__", "__cached__")
facts = {name: globals().get(name, "missing") for name in names}
facts["argv"] = sys.argv
facts["path"] = sys.path[0]
facts["beside"] = beside.__file__
facts["main"] = sys.modules["__main__"].__dict__ is globals()
facts["pickled"] = type(pickle.loads(pickle.dumps(Thing()))) is Thing
facts["module"] = Thing.__module__
facts["spec"] = getattr(__spec__, "name", None)
facts["code"] = (lambda: 0).__code__.co_filename
os.chdir(os.path.dirname(os.path.abspath(os.curdir)))
facts["source"] = open(__file__).readline() if os.path.exists(__file__) else "gone after chdir"
print(json.dumps(facts))
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "links").mkdir()
    for name in ("package/tells.py", "package/__main__.py"):
        (tmp_path / name).write_text(TELLS)
    (tmp_path / "package" / "__init__.py").touch()
    for name in ("beside.py", "links/beside.py", "package/beside.py"):
        (tmp_path / name).touch()
    (tmp_path / "links" / "tells.py").symlink_to(tmp_path / "package" / "tells.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("package/tells.py", "-e", "break x", "--batch", "--", "-m", "x y", "--help"),
        pytest.param(("links/tells.py",), marks=pytest.mark.long),
        ("-m", "package.tells", "-x", "--json", "-"),
    ],
    ids=["a script", "a link to a script", "a module"],
)
def test_the_script_sees_what_python_shows_it(words, folder):
    by_python = run([sys.executable, *words], cwd=folder, fresh=True)
    assert by_python.returncode == 0, by_python.stderr
    ours = run(layerstep_run("run", "--batch", *words), cwd=folder, fresh=True)
    assert (ours.returncode, ours.stderr) == (0, "")
    assert json.loads(ours.stdout) == json.loads(by_python.stdout)


def test_the_installed_command_does_the_same(folder):
    command = Path(sys.executable).with_name("layerstep")
    if not command.exists():
        pytest.skip("layerstep is not installed beside this python")
    by_python = run([sys.executable, "-m", "package", "a"], cwd=folder, fresh=True)
    ours = run([str(command), "run", "--batch", "-m", "package", "a"], cwd=folder, fresh=True)
    assert (ours.returncode, ours.stderr) == (0, "")
    assert json.loads(ours.stdout) == json.loads(by_python.stdout)


def test_a_safe_path_stays_as_it_is(folder):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "helper.py").touch()
    script = folder / "imports.py"
    script.write_text("import helper\nprint(helper.__name__)\n")
    path = filter(None, (str(folder / "elsewhere"), os.environ.get("PYTHONPATH")))
    env = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path)}
    assert run([sys.executable, str(script)], fresh=True, **env).stdout == "helper\n"
    ours = run(layerstep_run("run", "--batch", script), fresh=True, **env)
    assert (ours.returncode, ours.stdout) == (0, "helper\n")
