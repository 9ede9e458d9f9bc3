"""Between a session and those it talks to: what it says, whom it asks, who reads its lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from layerstep.engine.events import Resume
from layerstep.engine.expression import Expression
from layerstep.views import View

if TYPE_CHECKING:
    from layerstep.crashes.traceback_calls import Crash
    from layerstep.engine.pause import Pause
    from layerstep.engine.session import Session
    from layerstep.watchpoints.watchpoint import Watchpoint

__all__ = ["Frontend", "Instrument", "Interpreter", "Measuring", "Message", "Watch", "is_lost"]


@dataclass(frozen=True, slots=True)
class Message:
    """Something to show: a stop, the answer to a line, a logpoint's line, a notice; or how far work has come.

    The last is of kind `progress`, a line of text: for a screen, and for no file.
    """

    kind: str
    view: View
    line: str = ""
    origin: str = ""
    """Where the line came from, if nobody typed it: a point's commands, a file."""
    stop: dict[str, Any] | None = None
    """Of a stop: where the run stands, as data."""


def is_lost(error: Exception) -> bool:
    """Does this exception of a listener mean that it has nowhere to write: a full disk, a closed file?

    Any other one, such as too deep a recursion where it was called, may be gone the next time.
    """
    return isinstance(error, OSError) or (isinstance(error, ValueError) and "closed file" in str(error))


class Frontend(Protocol):
    """Somebody who can be asked for lines while the run is paused."""

    def paused(self) -> None: ...

    def resumed(self) -> None: ...

    def close(self) -> None: ...


class Interpreter(Protocol):
    """Lines and stops as views; handed in, so that the engine knows no command."""

    def interpret(self, session: Session, line: str) -> View | Resume | None: ...

    def describe(self, session: Session, pause: Pause) -> View: ...

    def explain(self, crash: Crash) -> str: ...


class Instrument(Protocol):
    """Something that is installed beside taps while it is needed."""

    def apply(self) -> None:
        """The points have changed: install what they need, and no more."""

    def clear(self) -> None:
        """Take everything off."""

    def cost(self) -> list[str]:
        """What is installed now, in words."""
        return []


@runtime_checkable
class Measuring(Protocol):
    """An instrument whose findings are worth nothing if nobody reads them."""

    is_on: bool

    def unread(self) -> list[str]:
        """The lines that show what was measured and nobody has asked for yet."""

    def clear(self) -> None:
        """It is over: what is not complete now never will be."""

    def shortfall(self) -> str:
        """At the end of a run: what was to be measured and was not, or nothing."""


@dataclass(slots=True, eq=False)
class Watch:
    """An expression shown at every stop, and how it looked at the last one."""

    expression: Expression
    last: str | None = None
    point: Watchpoint | None = None
    """Of `watch --stop`: the run stops where the tensor is written."""
