"""`layerstep diff a.py b.py`: run two programs, each in its own process; name the layer where they differ."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from layerstep._torch import is_tracing
from layerstep.calls.events import Phase
from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.errors import Quit, UserError
from layerstep.hooks.taps import Sink, Taps
from layerstep.lockstepping.comparing import compare_traces
from layerstep.lockstepping.recordings import SUFFIXES, read_run, write_run
from layerstep.lockstepping.running import Arguments, trace_of
from layerstep.lockstepping.sides import read_map
from layerstep.lockstepping.views import lockstep_view
from layerstep.program import Program

__all__ = ["ProgramDiff", "diff_programs", "record_program"]

PARTED_EXIT_CODE = 1
NO_FORWARD_EXIT_CODE = 2
MOST_ERROR_LINES = 12


@dataclass(frozen=True, slots=True)
class ProgramDiff:
    """What was asked for."""

    first: str
    """A script with its arguments, or the file of a run."""
    second: str
    tolerance: float | None = None
    forward: int = 1
    map: str | None = None


class _Enough(Quit):
    """The forward is recorded. A `SystemExit`: a trainer that catches every `Exception` lets it pass."""


class _Recorder(Instrument):
    """Records the layers of one forward when it begins, on copies, and ends the program."""

    def __init__(self, session: Session, forward: int, path: Path) -> None:
        self._session, self._left, self._path = session, forward, path
        self._sink = Sink(self._report, _ignore, _ignore)
        self._sink.listening = True
        self._taps = Taps(self._sink)

    def apply(self) -> None:
        self._taps.apply_to(self._session.run.models.tappable, Phase.ENTER)

    def clear(self) -> None:
        self._taps.clear()

    def _report(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        if self._session.run.is_silent or is_tracing() or next(module.parameters(), None) is None:
            return  # the last: a loss, say
        self._left -= 1
        if not self._left:
            trace = trace_of(self._session, module, Arguments(tuple(args), dict(kwargs)), title="")
            write_run(trace, self._path)
            raise _Enough


def _ignore(*_: Any) -> None:
    """Ignore the other reports of a tap."""


def record_program(words: Sequence[str], session: Session, path: Path, forward: int) -> int:
    """Run a program up to a forward, and write what its layers do; the exit code."""
    program = Program(words[0], words[1:])
    session.instruments.put(_Recorder(session, forward, path))
    session.attach(discover=True)
    try:
        code = program.run()
    except _Enough:
        return 0
    finally:
        session.detach()
        session.close()
    print(f"layerstep: {words[0]} has ended without forward {forward} of a model", file=sys.stderr)
    return code or NO_FORWARD_EXIT_CODE


def diff_programs(wanted: ProgramDiff, session: Session) -> int:
    """Run both, compare, and show; the exit code is 1 if they differ."""
    paths = read_map(wanted.map) if wanted.map else None
    with tempfile.TemporaryDirectory(prefix="layerstep-") as folder:
        files = [
            _file_of(text, Path(folder) / f"{at}.safetensors", wanted.forward)
            for at, text in enumerate((wanted.first, wanted.second))
        ]
        runs = [read_run(file) for file in files]
    for run, text in zip(runs, (wanted.first, wanted.second), strict=True):
        run.title = text
    found = compare_traces(runs[0], runs[1], tolerance=wanted.tolerance, paths=paths)
    session.say(lockstep_view(found, most=max(4, session.run.config.max_lines - 12)))
    session.close()
    return PARTED_EXIT_CODE if found.parts else 0


def _file_of(text: str, path: Path, forward: int) -> Path:
    """The run of a program, recorded by a process of its own; or the file that was given."""
    if text.endswith(SUFFIXES):
        return Path(os.path.expanduser(text))
    words = shlex.split(text)
    command = [sys.executable, "-m", "layerstep", "diff", "--save", str(path), "--forward", str(forward)]
    done = subprocess.run(
        [*command, shlex.join(words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode or not path.exists():
        lines = done.stderr.strip().splitlines()[-MOST_ERROR_LINES:]
        print("\n".join(lines), file=sys.stderr)
        raise UserError(f"{words[0]} could not be recorded", f"it ended with exit code {done.returncode}")
    return path
