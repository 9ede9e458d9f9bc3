"""Our imports and the program's: a file of the script's folder is the program's, and never code of ours."""

from __future__ import annotations

import io
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from torch import nn

from layerstep import DebugConsole, registry
from layerstep.imports import installed_entry_points
from layerstep.views import Text

NAMES = (
    "rich",
    "xml",
    "safetensors",
    "platformdirs",
    "plotext",
    "psutil",
    "pygments",
    "prompt_toolkit",
    "csv",
)
SCRIPT = """
import rich, psutil, xml, layerplug
print(rich.OWNER, psutil.OWNER, xml.OWNER)
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
model(torch.ones(1, 2))
import safetensors, csv
print(safetensors.OWNER, csv.OWNER)
"""
LINES = (
    "break 0",
    "continue",
    "hist out",
    "export a.svg",
    "export a.csv",
    "save-tensor out a.safetensors",
    "dump a.lscore",
    "import rich; print('at the prompt:', rich.OWNER)",
    "memory",
    "continue",
)


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("OWNER = 'the program'\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    plugin = tmp_path / "plug.egg-info"
    plugin.mkdir()
    (plugin / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[layerstep.commands]\nplug = layerplug\n")
    (tmp_path / "layerplug.py").write_text("import sys\nprint('loaded', file=sys.stderr)\n")
    return tmp_path


def run(folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "layerstep", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )


def test_files_named_like_our_libraries(folder) -> None:
    """The program finds its own, our commands find the libraries, the prompt finds the program's."""
    given = [word for line in LINES for word in ("-e", line)]
    done = run(folder, "run", "--batch", *given, "train.py")
    assert done.stdout == "the program the program the program\nthe program the program\n"
    assert done.returncode == 0, done.stderr
    assert "✗" not in done.stderr and "at the prompt: the program" in done.stderr
    assert done.stderr.count("loaded") == 1, "by the program, and not as a plugin of ours"
    for name in ("a.svg", "a.csv", "a.safetensors", "a.lscore"):
        assert (folder / name).stat().st_size > 0
    opened = run(folder, "open", "--batch", "-e", "tree", "a.lscore")
    assert "loaded" not in opened.stderr and "Linear" in opened.stderr and opened.returncode == 0


def test_only_what_is_installed_is_a_plugin(folder, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert not any(home == "plug" for _, home in installed_entry_points("layerstep.commands"))
    assert any(home == "pytest" for _, home in installed_entry_points("console_scripts"))


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """Load the commands anew, with files of this folder as the installed plugins."""
    registry.load()
    for name in ("_commands", "_plugins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registry, "_loaded", set())
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        point = EntryPoint(name, name, "layerstep.commands")
        monkeypatch.setattr(registry, "installed_entry_points", lambda group: [(point, "some-plugin")])

    return install


@pytest.mark.parametrize("text", ["1/0", "raise SystemExit(3)", "import nosuch_module_at_all", "x = ("])
def test_a_broken_plugin_is_told_once_and_left_out(text: str, plugins) -> None:
    plugins(f"broken_{len(text)}", text)
    out = io.StringIO()
    console = DebugConsole(nn.Linear(1, 1), output=out)
    console.execute("tree")
    console.execute("tree")
    assert out.getvalue().count("is left out") == 1
    assert out.getvalue().count("in_features=1") == 2


def test_a_command_of_a_plugin_that_fails_is_not_our_bug(plugins) -> None:
    plugins(
        "failing_plugin",
        "from layerstep.registry import command\n"
        "@command('frob', group='self', args=())\n"
        "def frob(session, given):\n    'Fail.'\n    raise KeyError('x')\n",
    )
    view = DebugConsole(nn.Linear(1, 1), output=io.StringIO()).execute("frob")
    assert "frob of some-plugin failed: KeyError: 'x'" in str(view)
    assert not isinstance(view, Text)


@pytest.mark.long
def test_help_under_oo() -> None:
    """`python -OO` drops docstrings: help is read from the source."""
    code = (
        "from layerstep.registry import all_commands\n"
        "from layerstep.commands.config_ import setting_help\n"
        "empty = [c.name for c in all_commands() if len(c.help) < 10]\n"
        "print(empty, len(setting_help()) > 5)\n"
    )
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout == "[] True\n", done.stderr
