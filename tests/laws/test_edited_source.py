"""A file that is edited while its program stands still: `list` shows what runs, or says that it cannot."""

from __future__ import annotations

import importlib.util
import io
import linecache
import os
import time

import pytest
import torch

from layerstep import DebugConsole
from layerstep.cli import main
from play import _as_main

SOURCE = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)

    def forward(self, x):
        y = x + 1
        return self.a(y)
"""
EDITS = {
    "no Python": SOURCE.replace("self.a(y)", "self.a("),
    "longer": "# a line more\n" * 5 + SOURCE,
    "shorter": "from torch import nn\n",
    "empty": "",
}


def stopped(path, edit: str, *, is_known: bool) -> str:
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("net", path)
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    model, out = net.Net(), io.StringIO()
    linecache.clearcache()
    if is_known:
        linecache.getlines(str(path))
    path.write_text(edit)
    os.utime(path, (time.time() + 5, time.time() + 5))
    lines = [
        "list",
        "list a",
        "up",
        "list",
        "list Net",
        "longlist",
        "why-not a",
        "dump core.lscore",
        "p 41 + 1",
    ]
    with DebugConsole(model, input=io.StringIO("\n".join(lines) + "\n"), output=out) as console:
        console.execute("break a")
        model(torch.ones(1, 2))
    return out.getvalue()


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_lines_that_were_read_before_are_shown_as_they_ran(edit: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = stopped(tmp_path / "net.py", edit, is_known=True)
    assert "a bug in layerstep" not in said and "42" in said
    assert "→ 11          return self.a(y)" in said
    assert "as it ran; the file has changed since" in said


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_lines_that_were_not_are_said_to_have_changed(edit: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = stopped(tmp_path / "net.py", edit, is_known=False)
    assert "a bug in layerstep" not in said and "42" in said
    assert "has changed since it was loaded" in said or "is not to be found" in said


def test_a_file_that_is_as_it_was_says_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = stopped(tmp_path / "net.py", SOURCE, is_known=False)
    assert "→ 11          return self.a(y)" in said and "changed" not in said


def test_a_script_that_rewrites_itself_is_shown_as_it_ran(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os, torch\nfrom torch import nn\nos.truncate(__file__, 0)\n"
        "model = nn.Linear(1, 1)\nmodel(torch.ones(1, 1))\n"
    )
    with _as_main():
        assert main(["run", "--batch", "-e", "break **", "-e", "continue", "-e", "list", "train.py"]) == 0
    assert "→ 5  model(torch.ones(1, 1))" in capsys.readouterr().err
