"""What a session says, to whom, and whom it asks for lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from layerstep.errors import message_of
from layerstep.expressions.expression import Expression
from layerstep.expressions.scope import Scope
from layerstep.imports import our_imports
from layerstep.process.interrupts import not_now
from layerstep.tensors.present import short
from layerstep.views import Notice, Text, View

__all__ = ["Frontend", "Message", "Messages", "Watch", "is_lost"]


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
    """Asks a person or a file for lines while the run is paused."""

    @property
    def has_keyboard(self) -> bool:
        """Does Ctrl-C in the terminal of this process belong to the debugger?"""

    def paused(self) -> None: ...

    def resumed(self) -> None: ...

    def close(self) -> None: ...

    def hand_over(self) -> Any:
        """What was typed ahead, for the process that asks from now on; it can be pickled."""

    def take_over(self, handed: Any) -> None:
        """This process asks from now on. It was forked while the run went on: no thread of ours is here."""


class Messages:
    """Hands each message to the listeners."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Message], None]] = []
        self._said: set[str] = set()

    def listen(self, listener: Callable[[Message], None]) -> None:
        self._listeners.append(listener)

    def say(
        self,
        view: View,
        kind: str = "notice",
        line: str = "",
        *,
        origin: str = "",
        stop: dict[str, Any] | None = None,
    ) -> None:
        """Show a view. A listener that fails is never a reason for the run to end."""
        with not_now(), our_imports():
            for listener in list(self._listeners):
                try:
                    listener(Message(kind, view, line, origin, stop))
                except Exception as error:
                    if is_lost(error) and listener in self._listeners:
                        self._listeners.remove(listener)

    def say_once(self, text: str, hint: str) -> None:
        """Show a notice, unless the same one was shown before."""
        if text not in self._said:
            self._said.add(text)
            self.say(Notice(text, hint))


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
            return f"<{type(error).__name__}: {message_of(error)}>".split("\n")[0][:100]

    def row(self, now: str) -> Text:
        """How it looks, and how it looked at the last stop if that was different."""
        was = "" if self.last is None or self.last == now else f"   was {self.last}"
        return Text(f"{self.expression.text} = {now}{was}")
