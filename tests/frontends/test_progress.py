"""The line that says how far a profile is: on a terminal only, gone before anything else, in no file."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from layerstep.dispatch import Dispatcher
from layerstep.frontends.choose import open_session
from layerstep.frontends.progress import ProgressLine
from layerstep.profile import profiling
from layerstep.views import Notice

ERASED = "\x1b[J"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(raw: str) -> list[str]:
    return re.findall(r"\r\n(profile [^\x1b]*)\x1b8", raw)


def test_it_is_as_wide_as_the_terminal_and_is_erased_once() -> None:
    file = Terminal()
    line = ProgressLine(Console(file=file, width=20, force_terminal=True, legacy_windows=False))
    line.erase()
    assert file.getvalue() == ""
    line.draw("profile " + "█" * 40)
    assert lines_of(file.getvalue()) == ["profile " + "█" * 11]
    line.erase()
    line.erase()
    assert file.getvalue().count(ERASED) == 1 and file.getvalue().endswith(ERASED)


@pytest.mark.parametrize(
    "width, shown",
    [
        (20, "profile 1  loss 0.5"),
        (19, "profile 1"),
        (40, "profile 1  loss 0.5  health 100"),
    ],
)
def test_what_does_not_fit_is_left_out_part_by_part(width: int, shown: str) -> None:
    file = Terminal()
    line = ProgressLine(Console(file=file, width=width, force_terminal=True, legacy_windows=False))
    line.draw("profile 1  loss 0.5  health 100")
    assert lines_of(file.getvalue()) == [shown]


@pytest.mark.parametrize("term", ["pipe", "dumb"])
def test_elsewhere_it_is_not_drawn(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    file = Terminal() if term == "dumb" else io.StringIO()
    ProgressLine(Console(file=file, width=20, force_terminal=True)).draw("profile")
    assert file.getvalue() == ""


def test_a_terminal_without_blocks_gets_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    console = Console(file=file, width=40, force_terminal=True, legacy_windows=False)
    monkeypatch.setattr(Console, "encoding", property(lambda self: "ascii"))
    ProgressLine(console).draw("profile ██░░")
    assert lines_of(file.getvalue()) == ["profile ##.."]


def test_a_profile_draws_it_and_takes_it_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiling, "PROGRESS_EVERY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    file, data, model = Terminal(), io.StringIO(), nn.Linear(2, 2)
    session, _ = open_session(output=file, json=data, batch=True)
    session.prompt.transcript = str(tmp_path / "t.txt")
    session.add_model(model)
    session.attach()
    view = Dispatcher().interpret(session, "profile 2")
    assert isinstance(view, Notice)
    session.say(view)
    for _ in range(5):
        time.sleep(0.001)
        with torch.no_grad():
            model(torch.ones(1, 2))
    session.detach()
    drawn = lines_of(file.getvalue())
    assert [line.partition("░ ")[2] or line.split("█ ")[1] for line in drawn] == [
        "1 to warm up",
        "0 of 2 forwards",
        "1 of 2 forwards",
    ]
    after = file.getvalue().rpartition("\x1b8")[2]
    assert after.startswith(ERASED) and "2 forwards timed" in after
    kinds = {json.loads(line)["kind"] for line in data.getvalue().splitlines()}
    assert "progress" not in kinds and "warm up" not in (tmp_path / "t.txt").read_text()


class Stream(io.TextIOWrapper):
    """The program's own stream, on a terminal."""

    def __init__(self, file: Terminal) -> None:
        super().__init__(io.BytesIO(), write_through=True)
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text)

    def isatty(self) -> bool:
        return True


def test_it_is_erased_before_the_program_ends_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal()
    stream = Stream(file)
    monkeypatch.setattr("sys.stdout", stream)
    line = ProgressLine(Console(file=file, width=40, force_terminal=True, legacy_windows=False))
    line.draw("profile 1 of 2")
    print("\r50%", end="")  # a bar stays on its line
    assert ERASED not in file.getvalue()
    print("epoch 1")
    assert file.getvalue().endswith(f"\r50%epoch 1{ERASED}\n")
    print("epoch 2")
    line.erase()
    assert file.getvalue().count(ERASED) == 1 and file.getvalue().endswith("epoch 2\n")
    assert "write" not in vars(stream)
