"""Between a session and those it talks to: what it says, whom it asks, who reads its lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from layerstep.engine.events import Resume
from layerstep.engine.expression import Expression
from layerstep.engine.scope import Scope
from layerstep.errors import UserError
from layerstep.tensors.present import short
from layerstep.views import Text, View

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Frontend", "Interpreter", "Message", "NoCommands", "Watch", "is_lost"]


@dataclass(frozen=True, slots=True)
class Message:
    """Something to show: a stop, the answer to a line, a logpoint's line, a notice; or how far work has come.

    The last is of kind `progress`, a line of text: for a screen, and for no file.
    """

    kind: str
    view: View
    line: str = ""
    origin: str = ""
    """Where the line came from, if it was not typed: a point's commands, a file."""
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
    """Answers lines; handed in, so that the engine knows no command."""

    def interpret(self, session: Session, line: str) -> View | Resume | None: ...


class NoCommands:
    """Of a session that only measures: no line is ever handed in."""

    def interpret(self, session: Session, line: str) -> View | Resume | None:
        raise UserError("no commands are answered here")


@dataclass(slots=True, eq=False)
class Watch:
    """An expression shown at every stop, and how it looked at the last one."""

    expression: Expression
    last: str | None = None

    def now(self, scope: Scope) -> str:
        """How it looks here."""
        try:
            return short(self.expression.evaluate(scope))
        except Exception as error:
            return f"<{type(error).__name__}: {error}>".split("\n")[0][:100]

    def row(self, now: str) -> Text:
        """How it looks, and how it looked at the last stop if that was different."""
        was = "" if self.last is None or self.last == now else f"   was {self.last}"
        return Text(f"{self.expression.text} = {now}{was}")
