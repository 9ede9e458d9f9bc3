"""Where in a forward: the calls on the way, in their order, and how a stop is found among them again.

In the first run only the modules of points are tapped, or all from some stop on. So a place is told by the
stops that led to it: from each one to the next, the n-th time that a module was entered or left. These counts
hold, because what is tapped changes at stops only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from layerstep._torch.graphs import autograd_count
from layerstep.calls.events import Phase
from layerstep.engine.restart import PassedCalls
from layerstep.rewind.outputs import KeptOutput

__all__ = ["Boundary", "Clock", "Key", "Place", "Route", "Search", "find_call"]

Key = tuple[int, Phase]
"""The id of a module, and whether it is entered or left."""


@dataclass(slots=True, eq=False)
class Boundary:
    """A module is entered or left, on the way from the beginning of the forward."""

    module: nn.Module
    phase: Phase
    stack: tuple[int, ...]
    """The ids of the modules that run, this one included; the outermost first."""
    clock: int = 0
    output: KeptOutput = ()

    @property
    def key(self) -> Key:
        return id(self.module), self.phase

    def is_entry_of(self, stack: tuple[int, ...]) -> bool:
        return self.phase is Phase.ENTER and self.stack == stack

    def is_exit_of(self, stack: tuple[int, ...]) -> bool:
        return self.phase is Phase.EXIT and self.stack == stack


@dataclass(slots=True)
class _Anchor:
    key: Key
    count: int
    output: KeptOutput


@dataclass(slots=True)
class Place:
    """A stop that is no boundary, at a line or an op say: which modules run, and whether one has raised."""

    stack: tuple[int, ...]
    clock: int = 0
    is_raised: bool = False


@dataclass(slots=True)
class Route:
    """How the run has come to where it is."""

    start: int = 0
    """The number of the boundary that it began at; 0 is the entry of the forward."""
    anchors: list[_Anchor] = field(default_factory=list)
    passed: PassedCalls = field(default_factory=PassedCalls)
    is_counted: bool = True
    """No if taps came and went between two stops, as at a Ctrl-C."""

    def stops(self, key: Key, output: KeptOutput) -> None:
        """The run stops at a boundary."""
        self.anchors.append(_Anchor(key, max(self.passed.times(*key), 1), output))
        self.passed.clear()

    def went_on_with(self, output: KeptOutput) -> bool:
        """The last stop has replaced what was seen there; False if it was at the boundary it began at."""
        if self.anchors:
            self.anchors[-1].output = output
        return bool(self.anchors)

    def begin_at(self, number: int) -> None:
        """The run stands at a boundary whose number is known."""
        self.start = number
        self.anchors.clear()
        self.passed.clear()
        self.is_counted = True

    def find(self, boundaries: list[Boundary]) -> int | None:
        """The number of the boundary that the run stands at, or None if these do not go so far."""
        search = Search(self)
        for boundary in boundaries:
            if search.is_over:
                break
            search.pass_by(boundary)
        return search.number if search.is_over else None


class Search:
    """Goes along the boundaries of a run from its entry, until it is where the route has led to."""

    def __init__(self, route: Route) -> None:
        self.number = -1
        """Of the boundary that was passed last."""
        self.seen: list[tuple[int, KeptOutput]] = []
        """The boundaries that the route has stopped at, with what was seen there."""
        self._start = route.start
        self._anchors = list(route.anchors)
        self._left = self._anchors[0].count if self._anchors else 0

    @property
    def is_over(self) -> bool:
        return self.number >= self._start and not self._anchors

    @property
    def last_stop(self) -> int:
        """The number of the last boundary that is known to be on the route."""
        return self.seen[-1][0] if self.seen else self._start

    def pass_by(self, boundary: Boundary) -> None:
        self.number += 1
        if self.number <= self._start or not self._anchors or boundary.key != self._anchors[0].key:
            return
        self._left -= 1
        if not self._left:
            self.seen.append((self.number, self._anchors.pop(0).output))
            self._left = self._anchors[0].count if self._anchors else 0


class Clock:
    """Counts the autograd nodes that a forward has made, without those of lines at the prompt.

    It tells apart two calls of one module at one place. Without gradients it stands still.
    """

    def __init__(self) -> None:
        self._zero = autograd_count()
        self._stopped: int | None = None

    @property
    def now(self) -> int:
        return (autograd_count() if self._stopped is None else self._stopped) - self._zero

    def stop(self) -> None:
        """The run stands still."""
        self._stopped = autograd_count()

    def go_on(self) -> None:
        if self._stopped is not None:
            self._zero += autograd_count() - self._stopped
            self._stopped = None


def find_call(boundaries: list[Boundary], place: Place, after: int) -> tuple[int, bool]:
    """The entry of the module that runs at a place, and whether it may be another one.

    That is the last one if it has raised. Else the clock tells. Where it stands still, it is the one that
    runs at the boundary `after`, the last stop; if there is none, the first one after that.
    """
    entries = [number for number, each in enumerate(boundaries) if each.is_entry_of(place.stack)]
    if not entries:
        return 0, True
    if place.is_raised or len(entries) == 1:
        return entries[-1], False
    clocks = [boundaries[number].clock for number in entries]
    if len(set(clocks)) == len(clocks):
        return next((n for n in reversed(entries) if boundaries[n].clock <= place.clock), entries[0]), False
    for number in reversed(entries):
        passed = boundaries[number : after + 1]
        if number <= after and not any(each.is_exit_of(place.stack) for each in passed):
            return number, True
    return next((number for number in entries if number > after), entries[-1]), True
