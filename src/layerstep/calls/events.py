"""What happens in a run, as plain data."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Event", "Phase"]


class Phase(StrEnum):
    """The moments that can be stopped at, and what is noted on the way there."""

    ENTER = "enter"
    EXIT = "exit"
    BACKWARD_ENTER = "backward enter"
    """The first gradient has arrived at the output."""
    BACKWARD = "backward"
    """The gradients of the inputs are known."""
    INPUTS = "inputs"
    """No stop: what a module is called with is noted, for its exit."""
    EDIT_INPUT = "edit input"
    """No stop: what a module is called with may be replaced."""
    EDIT_OUTPUT = "edit output"
    """The same of what it returns, before anything else sees it."""
    RAISED = "raised"
    """It is left by an exception."""
    OP = "op"
    """A function of torch that the user's code calls has returned."""
    KERNEL = "kernel"
    """The same of an aten operator below it."""
    LINE = "line"
    """A line of the program's source is about to run."""

    @property
    def is_end(self) -> bool:
        return self in (Phase.EXIT, Phase.BACKWARD, Phase.RAISED) or self.is_op

    @property
    def is_op(self) -> bool:
        return self in (Phase.OP, Phase.KERNEL)

    @property
    def is_backward(self) -> bool:
        return self in (Phase.BACKWARD_ENTER, Phase.BACKWARD)


class Event(NamedTuple):
    """A module call is about to run or has just finished. References only, nothing computed.

    A named tuple is made three times as quickly as a frozen dataclass, and one is made at every event.
    """

    phase: Phase
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    call: Any = None
    """The call that the backward pass is at."""
    error: Any = None
    """The exception by which it is left."""
    op: Any = None
    """The operation that has just run, at a stop inside a module."""
