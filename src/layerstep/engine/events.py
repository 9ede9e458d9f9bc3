"""What happens in a run, and what the user wants to happen next. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Event", "Kind", "Phase", "Resume"]


class Phase(StrEnum):
    """The two moments of a module call that can be stopped at."""

    ENTER = "enter"
    EXIT = "exit"


class Event(NamedTuple):
    """A module call is about to run or has just finished. References only, nothing computed.

    A named tuple is made three times as quickly as a frozen dataclass, and one is made at every event.
    """

    phase: Phase
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None


class Kind(StrEnum):
    """The ways to leave a pause."""

    CONTINUE = "continue"
    STEP = "step"
    NEXT = "next"
    INTO = "into"
    FINISH = "finish"
    FORWARD = "forward"
    INTERRUPT = "interrupt"
    DETACH = "detach"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Resume:
    """A resume is a value: a command returns it and the pause ends."""

    kind: Kind
    count: int = 1
    forward: int = 0
