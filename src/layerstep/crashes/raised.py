"""An exception as the cause of a stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from layerstep.crashes.traceback_calls import Crash, PassedCall
from layerstep.engine.stop import Shown, Stop
from layerstep.views import View

__all__ = ["MARK", "Raised"]

MARK = "layerstep: "
"""How our notes on an exception begin: one that has such a note was dealt with."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A module, or the program, has raised an exception."""

    crash: Crash
    passed: Callable[[Crash], list[PassedCall]] = lambda crash: []

    def view(self, stop: Stop, shown: Shown) -> View:
        from layerstep.crashes.views import crash_view  # with twenty files that explain, wanted only here

        return crash_view(
            self.crash,
            forward=stop.forward,
            reason=stop.reason,
            passed=self.passed(self.crash),
            more=shown.watches,
        )
