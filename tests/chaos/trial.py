"""One random program, bare and debugged: what the debugger did wrong."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from random_lines import Typist
from random_programs import program

from layerstep import DebugConsole
from zoo import differences, global_state, taps_on

__all__ = ["Trial", "try_seed"]


@dataclass
class Trial:
    """What came of a seed."""

    seed: int
    lines: int = 0
    faults: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)


class Typed(io.TextIOBase):
    """A stream of lines that are chosen when they are asked for, and kept."""

    def __init__(self, lines: Iterator[str], kept: list[str]) -> None:
        self._lines = lines
        self._kept = kept

    def readable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        line = next(self._lines, None)
        if line is None:
            return ""
        self._kept.append(line)
        return line + "\n"


def try_seed(seed: int, most: int = 40) -> Trial:
    """Run the program of a seed bare and with random lines at random stops, and compare."""
    torch.set_num_threads(1)
    trial = Trial(seed)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        bare = program(seed).run()
        again = program(seed).run()
        before = global_state()
        debugged = program(seed)
        typist = Typist(seed, debugged.model)
        screen = io.StringIO()
        console = DebugConsole(debugged.model, input=Typed(typist.lines(most), trial.typed), output=screen)
        for line in typist.first():
            console.execute(line)
            trial.typed.append(line)
        with console:
            seen = debugged.run()
        after = global_state()
    trial.lines = len(trial.typed)
    text = screen.getvalue()
    if not differences(bare, again):  # a program that differs from itself, by threads say, tells nothing
        trial.faults += [f"other bits: {place}" for place in differences(bare, seen)[:3]]
    trial.faults += [line.strip() for line in text.splitlines() if "a bug in layerstep" in line]
    trial.faults += ["a traceback on the screen"] * ("Traceback (most recent" in text)
    trial.faults += ["an escape sequence on the screen"] * ("\x1b" in text)
    trial.faults += [f"left on the model: {tap!r}" for tap in taps_on(debugged.model)[:3]]
    trial.faults += [f"left in the process: {key}" for key in before if before[key] != after[key]]
    return trial
