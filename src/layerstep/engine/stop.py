"""A stop: where the run stands still, and why. Every source of stops makes one of these.

`Standstill` does the rest, in one way for all of them: it counts the point, honours what is to be ignored,
opens the prompt and shows the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple, Protocol

from layerstep.calls.events import Event
from layerstep.calls.stack import Frame
from layerstep.engine.point import Point
from layerstep.views import Group, View

__all__ = ["Caught", "Cause", "Hold", "Match", "Nothing", "Shown", "Stop"]


class Shown(NamedTuple):
    """How a stop is to be shown."""

    limit: int
    """Tensors of more elements are sampled."""
    copy_limit: int
    """Inputs of more bytes are not copied before a layer that may overwrite them."""
    watches: Sequence[tuple[str, View]] = ()
    """A row for each expression that is watched."""


class Cause(Protocol):
    """Why the run stands still. Each source of stops has a class of its own."""

    def view(self, stop: Stop, shown: Shown) -> View:
        """What is shown at the stop. Showing it changes nothing: it may be shown again."""


class Nothing:
    """Nothing to show: before the run, and after a pause."""

    def view(self, stop: Stop, shown: Shown) -> View:
        return Group(())


Hold = Callable[["Stop"], object]
"""Stands still at a stop until a line resumes the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Where the run stands still, and why."""

    cause: Cause
    stack: list[Frame] = field(default_factory=list)
    event: Event | None = None
    point: Point | None = None
    reason: str = ""
    """Why it stops, in a word or two: `break 1`, `set_trace()`; empty after a step."""
    trouble: str = ""
    """What is to be said first: a condition raised, or what a catchpoint has caught."""
    forward: int = 0
    python: FrameType | None = None
    """The frame of the user's code that runs: the caller of the module, or of `set_trace()`."""
    error: BaseException | None = None
    """The exception that is on its way, if one is."""


class Caught(NamedTuple):
    """What a catchpoint has caught at an event."""

    text: str
    elsewhere: Callable[[Hold], str] | None = None
    """Stands still where it was made, in a rerun say; returns why it could not, or nothing."""


class Match(NamedTuple):
    """A point that an event meets."""

    point: Point
    trouble: str = ""
    """Its condition raised. It stops then, whatever it ignores."""
    caught: Caught | None = None
