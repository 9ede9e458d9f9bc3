"""Files that we write: whole or not at all, and never through a link that others have laid."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

from layerstep import DebugConsole


def answer(*lines: str) -> str:
    model, out = nn.Linear(2, 2), io.StringIO()
    with DebugConsole(
        model, input=io.StringIO("".join(f"{line}\n" for line in lines)), output=out
    ) as console:
        console.execute("break **")
        model(torch.ones(1, 2))
    return " ".join(out.getvalue().split())


WRITERS = {
    "dump": "dump {}.lscore",
    "npy": "save-tensor out {}.npy",
    "safetensors": "save-tensor out {}.safetensors",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", WRITERS.values(), ids=WRITERS)
def test_no_name_can_be_foreseen(line: str) -> None:
    """A link that waits under a name made of the file's and the process's is left alone."""
    name = line.format("out").split()[-1]
    Path("victim").write_text("precious")
    os.symlink("victim", f".{name}.{os.getpid()}")
    answer(line.format("out"))
    assert Path("victim").read_text() == "precious"
    assert os.path.getsize(name) > 0
    assert sorted(os.listdir()) == sorted(["victim", f".{name}.{os.getpid()}", name])


@pytest.mark.parametrize("line", [WRITERS["dump"], WRITERS["npy"]])  # safetensors has its own opinion
def test_a_file_has_the_rights_that_the_user_gives_to_files(line: str) -> None:
    before = os.umask(0o022)
    try:
        answer(line.format("out"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(line.format("out").split()[-1]).st_mode) == 0o644


@pytest.mark.parametrize("line", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("name", ["x" * 300, "no/such/folder/x"])
def test_a_name_that_cannot_be_is_one_line(line: str, name: str) -> None:
    said = answer(line.format(name))
    assert "cannot write" in said and "a bug in" not in said
    assert os.listdir() == []
