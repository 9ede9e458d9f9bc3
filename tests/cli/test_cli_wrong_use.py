"""Wrong use: one clear line, exit code 2, never a traceback."""

from __future__ import annotations

import pytest
from test_cli_run import layerstep_run, run

from layerstep import __version__
from layerstep.cli import main


def call(argv, capsys):
    """The exit code, stdout and stderr of a command line that is turned down before anything runs."""
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("raise SystemExit('it must not run')\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "required: run | doctor | attach | diff | open | demo"),
        (["rnu", "script.py"], "invalid choice: 'rnu'"),
        (["run"], "nothing to run; layerstep run script.py, or layerstep run -m module"),
        (["run", "--batch"], "nothing to run"),
        (["run", "-m"], "nothing to run"),
        (["run", "--nosuch", "script.py"], "--nosuch"),
        (["run", "-e"], "-e: expected one argument"),
        (["run", "--json"], "--json: expected one argument"),
        (["run", "nosuch.py"], "cannot read nosuch.py; No such file or directory"),
        (["run", "folder"], "cannot read folder; Is a directory"),
        (["run", "-x", "nosuch.txt", "script.py"], "cannot read nosuch.txt; No such file or directory"),
        (["run", "-x", "folder", "script.py"], "cannot read folder; Is a directory"),
        (["run", "-x", "binary", "script.py"], "cannot read binary; it is no text"),
        (["run", "--json", "nosuch/f", "script.py"], "cannot write nosuch/f; No such file or directory"),
        (["run", "--json", "folder", "script.py"], "cannot write folder; Is a directory"),
        (["demo", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_one_line_and_exit_code_2(argv, said, folder, capsys):
    code, out, err = call(argv, capsys)
    assert code == 2
    assert out == ""
    *usage, line = err.splitlines()
    assert line.startswith("layerstep") and said in line
    assert all(text.startswith(("usage: ", " ")) for text in usage)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"max_lines = ", "Invalid value"),
        (b"nosuch = 3", "no setting 'nosuch'"),
        (b"max_line = 3", "did you mean max_lines?"),
        (b"max_lines = 'many'", "max_lines is a whole number, not 'many'"),
        (b"pager = 'perhaps'", "pager is on or off, not 'perhaps'"),
        (b"context = 0", "context is at least 1"),
        (b"[max_lines]\nx = 1", "max_lines is a whole number"),
        (b"\xff\xfe\x00", "cannot read"),
    ],
    ids=["syntax", "unknown", "misspelt", "number", "switch", "least", "table", "binary"],
)
def test_a_wrong_configuration_file_is_named(text, said, folder, monkeypatch, capsys):
    config = folder / "wrong.toml"
    config.write_bytes(text)
    monkeypatch.setenv("LAYERSTEP_CONFIG", str(config))
    code, out, err = call(["run", "script.py"], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("layerstep: ") and err.count("\n") == 1
    assert said in err
    assert "wrong.toml" in err, "which file is wrong?"


def test_a_wrong_setting_in_the_environment_is_named(folder, monkeypatch, capsys):
    monkeypatch.setenv("LAYERSTEP_MAX_LINES", "many")
    code, out, err = call(["run", "script.py"], capsys)
    assert (code, out) == (2, "")
    assert "max_lines is a whole number, not 'many'" in err and err.count("\n") == 1
    assert "LAYERSTEP_MAX_LINES" in err, "who says so?"


def test_help_and_version(capsys):
    assert call(["--version"], capsys) == (0, f"layerstep {__version__}\n", "")
    for argv in (["--help"], ["run", "--help"]):
        code, out, err = call(argv, capsys)
        assert (code, err) == (0, "") and "usage: layerstep" in out
    for option in ("-e COMMAND", "-x FILE", "--batch", "--json FILE", "-m"):
        assert option in out


def test_the_process_ends_with_2(folder):
    done = run(layerstep_run("run", "--batch"), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "layerstep: nothing to run; layerstep run script.py, or layerstep run -m module\n"


def test_a_module_that_is_nowhere(folder):
    done = run(layerstep_run("run", "--batch", "-m", "nosuch_package.module"), cwd=folder)
    assert done.returncode in (1, 2)  # python itself says 1
    assert "no module named nosuch_package.module" in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1
