"""What the user wants to happen next: how a pause is left, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Kind", "Resume"]


class Kind(StrEnum):
    """The ways to leave a pause."""

    CONTINUE = "continue"
    STEP = "step"
    NEXT = "next"
    INTO = "into"
    FINISH = "finish"
    FORWARD = "forward"
    TRAINED = "trained"
    """Until so many training steps are done."""
    OP = "step op"
    KERNEL = "stepi"
    LINE = "step line"
    NEXT_LINE = "next line"
    UNTIL_LINE = "until line"
    """Until a line of this function that is not above the given one, or its end."""
    RETURN = "return"
    """Until this function returns."""
    BACK = "back"
    """The forward begins again and runs silently to an earlier place."""
    AGAIN = "again"
    """Run the module of a core file once more."""
    BACK_STEP = "back step"
    """Hand the run over to a checkpoint: `step` training steps are done there."""
    INTERRUPT = "interrupt"
    DETACH = "detach"
    QUIT = "quit"

    @property
    def is_by_line(self) -> bool:
        return self in (Kind.LINE, Kind.NEXT_LINE, Kind.UNTIL_LINE, Kind.RETURN)


@dataclass(frozen=True, slots=True)
class Resume:
    """A resume is a value: a command returns it and the pause ends."""

    kind: Kind
    count: int = 1
    forward: int = 0
    step: int = 0
    line: int = 0
    given: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments that replace those of the call."""
