"""Silence while a forward runs again: no point stops, and what it prints was printed already."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

from layerstep.engine.run import Run

__all__ = ["Silence"]


class Silence:
    """Of one thread, from `begin` to `end`; these are called at different depths of the program."""

    def __init__(self, run: Run) -> None:
        self._evaluation = run.evaluating()
        self._muted: _Muted | None = None
        self.is_on = False
        self.printed = 0
        """Lines that were not shown."""

    def begin(self) -> None:
        if not self.is_on:
            self.is_on = True
            self.printed = 0
            self._evaluation.__enter__()
            self._mute()

    def begin_run(self) -> None:
        """The forward begins again: count the lines of this run only.

        On the way out of the run before, a `redirect_stdout` of the program may have taken ours off.
        """
        if self.is_on:
            self._mute()

    def _mute(self) -> None:
        self.leave_stdout()
        self._muted = sys.stdout = _Muted(sys.stdout)

    def end(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        self._evaluation.__exit__()
        if self._muted is not None:
            self.printed = self._muted.lines
            self._muted.owner = 0
        self.leave_stdout()

    def leave_stdout(self) -> None:
        """Take ours off again. If the program has put its own over ours meanwhile, that is tried later."""
        if self._muted is not None and sys.stdout is self._muted:
            sys.stdout = self._muted.through
            self._muted = None


class _Muted(io.TextIOBase):
    """A stdout that counts the lines of one thread, and passes on what the others write."""

    def __init__(self, through: Any) -> None:
        self.owner = threading.get_ident()
        self.through = through
        self.lines = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.through, name)

    def write(self, text: str) -> int:
        if threading.get_ident() != self.owner:
            return int(self.through.write(text))
        self.lines += text.count("\n")
        return len(text)

    def flush(self) -> None:
        self.through.flush()
