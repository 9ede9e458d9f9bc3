"""Play a session: a script, the lines typed at the prompt, and what the screen shows.

The lines go through the real prompt by prompt_toolkit's pipe input; the screen is a rich console of
fixed width. Golden transcripts, the tutorial and the picture in the README come from here.
"""

from __future__ import annotations

import functools
import io
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from prompt_toolkit.input import create_pipe_input
from rich.console import Console

from layerstep.assembly import assemble
from layerstep.config import Config
from layerstep.errors import Quit
from layerstep.frontends.choose import choose_frontend
from layerstep.frontends.output import PROMPT, Screen, write_transcript
from layerstep.profile import machine
from layerstep.program import Program, debug
from layerstep.render.screen import make_console

TESTS = Path(__file__).parents[1]
TICK = 100_000
"""Nanoseconds that pass whenever the clock of a play is read, unless it is made with others."""
DEMO = TESTS.parent / "src" / "layerstep" / "demo" / "script.py"


def script_named(name: str) -> Path:
    """`demo`, a script of the tests, or `faults/NAME` and `costs/NAME` of the examples."""
    if name == "demo":
        return DEMO
    folder = TESTS.parent / "examples" if name.startswith(("faults/", "costs/")) else TESTS / "scripts"
    return folder / f"{name}.py"


def play(
    script: Path,
    lines: Sequence[str],
    *,
    console: Console | None = None,
    width: int = 80,
    keep_colour: bool = False,
    clock: Clock | None = None,
) -> tuple[str, int]:
    """The screen after typing the lines, program output included, and the exit code.

    With a clock of its own, what is timed takes the same time on any machine, however busy it is.
    """
    console = console or make_console(io.StringIO(), width=width, colour=False)
    screen_file = console.file
    with create_pipe_input() as pipe, _as_main(), redirect_stdout(_Through(console)), timed_by(clock):
        session = assemble(Config())
        screen = Screen(session, screen_file, console=console)
        session.listen(screen)
        session.listen(functools.partial(write_transcript, session))
        session.prompt.frontend = choose_frontend(session, screen, input=pipe, use_pipe=False)
        for line in lines:
            pipe.send_text(line.replace("\n", "\r") + "\r")
        pipe.send_text("\x04" * 8)
        try:
            code = debug(Program(str(script), []), session)
        except Quit as leaving:
            code = int(leaving.code or 0)
    text = screen_file.getvalue()  # type: ignore[attr-defined]
    return _cleaned(text, keep_colour=keep_colour), code


class Clock:
    """Time that passes only when it is asked for, and while a program sleeps."""

    def __init__(self, tick: int = TICK) -> None:
        self._nanoseconds, self._tick = 0, tick

    def __call__(self) -> int:
        self._nanoseconds += self._tick
        return self._nanoseconds

    def sleep(self, seconds: float) -> None:
        self._nanoseconds += round(seconds * 1e9)


@contextmanager
def timed_by(clock: Clock | None) -> Iterator[None]:
    """What is timed and what sleeps goes by this clock."""
    if clock is None:
        yield
        return
    before = time.sleep
    time.sleep = clock.sleep
    try:
        with machine.replaced(clock, cores=4):
            yield
    finally:
        time.sleep = before


class _Through(io.StringIO):
    """The program's stdout, on the same screen."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def write(self, text: str) -> int:
        self._console.file.write(text)
        return len(text)


@contextmanager
def _as_main() -> Iterator[None]:
    """`Program` makes itself `__main__`; put the test's own back."""
    before = sys.argv, sys.path[0], sys.modules["__main__"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        sys.argv, sys.path[0], sys.modules["__main__"] = before
        torch.set_num_threads(threads)


def _cleaned(text: str, *, keep_colour: bool = False) -> str:
    if not keep_colour:
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def read_transcript(path: Path) -> tuple[str, list[str], str]:
    """A transcript file: the script's name, the lines typed, and the expected screen."""
    head, _, body = path.read_text().partition("\n")
    name = head.removeprefix("# script: ").partition(",")[0].strip()
    typed: list[str] = []
    goes_on = False  # continuation lines follow a prompt line directly
    for line in body.splitlines():
        if line.startswith(PROMPT):
            typed.append(line.removeprefix(PROMPT))
            goes_on = True
        elif goes_on and (line == "..." or line.startswith("... ")):
            typed[-1] += "\n" + line[4:]
        else:
            goes_on = False
    return name, typed, body.strip("\n")
