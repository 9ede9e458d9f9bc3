"""The kinds of points, and all the points of a session.

Watchpoints have their class in `watchpoints/`, with what they know of their tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from torch import nn

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.engine.point import LinePlace, Point, PointKind
from layerstep.engine.stop import Caught
from layerstep.errors import BadArguments
from layerstep.expressions.expression import Template
from layerstep.module_paths.models import Models

__all__ = [
    "Break",
    "BreakAtLine",
    "BreakAtOp",
    "Catch",
    "Counts",
    "Edit",
    "Log",
    "Points",
    "Record",
    "Until",
]


@dataclass(slots=True, eq=False)
class Break(Point):
    """Stops at calls of modules."""

    kind: ClassVar[PointKind] = PointKind.BREAK

    def line(self) -> str:
        phase = self.phase.value if self.phase is not Phase.EXIT else ""
        return self._words(_break(self), self.where.text if self.where is not None else "**", phase)


@dataclass(slots=True, eq=False)
class BreakAtOp(Point):
    """Stops after operations, inside its modules or anywhere."""

    kind: ClassVar[PointKind] = PointKind.BREAK
    has_question: ClassVar[bool] = True
    _: KW_ONLY
    op: str
    """The operations that it stops after: `softmax`, `*norm*`, `aten.mm`."""

    @property
    def level(self) -> Phase:
        """Those that the user's code calls, or the kernels below them."""
        return Phase.KERNEL if self.op.startswith("aten.") else Phase.OP

    def line(self) -> str:
        inside = f"in {self.where.text}" if self.where is not None else ""
        return self._words(_break(self), f"op:{self.op}", inside)


@dataclass(slots=True, eq=False)
class BreakAtLine(Point):
    """Stops before a line of the program."""

    kind: ClassVar[PointKind] = PointKind.BREAK
    _: KW_ONLY
    source_line: LinePlace = field()  # else the property of the parent would be its default
    phase: Phase = Phase.LINE

    def line(self) -> str:
        return self._words(_break(self), self.source_line.text)


def _break(point: Point) -> str:
    return "tbreak" if point.temporary else "break"


@dataclass(slots=True, eq=False)
class Catch(Point):
    """Stops where its check finds something wrong. Without WHERE it asks at `root_phases` only."""

    kind: ClassVar[PointKind] = PointKind.CATCH
    has_question: ClassVar[bool] = True
    _: KW_ONLY
    what: str
    """What it catches: `nan`, `exception`."""
    set_by: str
    """The line that sets it again."""
    check: Callable[[Event], Caught | None] = lambda event: None
    """What it has caught at an event, if anything."""
    phases: tuple[Phase, ...] = ()
    """Where it asks, if that is at more than its phase."""
    root_phases: tuple[Phase, ...] = ()
    unread: str = ""
    """Why it could not read a value that it was asked about."""

    @property
    def asked_at(self) -> tuple[Phase, ...]:
        return self.phases or (self.phase,)

    @property
    def is_plain(self) -> bool:
        return False

    def line(self) -> str:
        return self.set_by


@dataclass(slots=True, eq=False)
class Log(Point):
    """Prints a line at calls of modules, and does not stop."""

    kind: ClassVar[PointKind] = PointKind.LOG
    stops: ClassVar[bool] = False
    _: KW_ONLY
    template: Template

    def line(self) -> str:
        where = self.where.text if self.where is not None else "**"
        return self._words("log", where, self.template.quoted)


@dataclass(slots=True, eq=False)
class Record(Point):
    """Measures something at calls of modules, and does not stop."""

    kind: ClassVar[PointKind] = PointKind.RECORD
    stops: ClassVar[bool] = False
    _: KW_ONLY
    action: Callable[[Frame], None]
    at_exit: Callable[[nn.Module, object], bool] | None = None
    """The same from no more than a module and what it has returned; False if that is not enough for it."""
    options: str = ""
    """The rest of the line that sets it again, after WHERE."""
    set_by: str = ""
    """The whole of that line, if another command than `record` has set it."""

    def line(self) -> str:
        where = self.where.text if self.where is not None else "**"
        return self.set_by or self._words("record", where, self.options)


class Change(Protocol):
    """What an edit does at a call."""

    done: int
    """In how many calls it acted."""
    why_not: str
    """Why it left the last call alone, if it did."""

    def __call__(self, event: Event, place: Frame) -> Event | None:
        """The event with other values in it; None at a call that it leaves alone."""


class Counts(NamedTuple):
    """How often an edit was asked and has acted, at one moment."""

    hits: int = 0
    tried: int = 0
    ignore: int = 0
    done: int = 0


@dataclass(slots=True, eq=False)
class Edit(Point):
    """Replaces what calls of its modules are given or return, and does not stop."""

    kind: ClassVar[PointKind] = PointKind.EDIT
    stops: ClassVar[bool] = False
    _: KW_ONLY
    change: Change
    set_by: str
    """The line that sets it again."""
    is_of_one_call: bool = False
    """A `set`: it acts only where its call runs again."""

    def counts(self) -> Counts:
        return Counts(self.hits, self.tried, self.ignore, self.change.done)

    def count_from(self, counts: Counts) -> None:
        """A forward begins again: what its first run has counted does not count."""
        self.hits, self.tried, self.ignore, self.change.done = counts

    @property
    def asked_at(self) -> tuple[Phase, ...]:
        return (Phase.EDIT_INPUT if self.phase is Phase.ENTER else Phase.EDIT_OUTPUT,)

    @property
    def is_plain(self) -> bool:
        return False

    def line(self) -> str:
        return self.set_by


@dataclass(slots=True, eq=False)
class Until(Point):
    """The hidden end of an `until`: at modules, at a line, or wherever its condition holds."""

    kind: ClassVar[PointKind] = PointKind.UNTIL
    _: KW_ONLY
    source_line: LinePlace | None = None


P = TypeVar("P", bound=Point)


class Points:
    """The points of a session, numbered from 1; numbers are not given twice."""

    def __init__(self) -> None:
        self._points: dict[int, Point] = {}
        self.last = 0

    def __iter__(self) -> Iterator[Point]:
        return iter(list(self._points.values()))

    def __len__(self) -> int:
        return len(self._points)

    @property
    def shown(self) -> list[Point]:
        """The points that the user set."""
        return [
            point
            for point in self
            if point.kind is not PointKind.UNTIL and not (isinstance(point, Edit) and point.is_of_one_call)
        ]

    def add(self, point: P) -> P:
        """Number a point and keep it. The end of an `until` has no number."""
        point.number = 0 if point.kind is PointKind.UNTIL else self.next_number()
        self._points[point.number] = point
        return point

    def put_back(self, point: Point) -> None:
        """Keep a point that was deleted, under its old number."""
        self._points[point.number] = point

    def next_number(self) -> int:
        """A number that nothing else has: points and watched expressions share them."""
        self.last += 1
        return self.last

    def get(self, text: str | int) -> Point:
        """The point of that number."""
        try:
            return self._points[int(text)]
        except (KeyError, ValueError):
            known = ", ".join(str(point.number) for point in self.shown)
            hint = f"there are {known}" if known else "there are none yet; `break WHERE` sets one"
            raise BadArguments(f"no point {text}", hint) from None

    def delete(self, point: Point) -> None:
        self._points.pop(point.number, None)

    def forget_until(self) -> None:
        """Any stop ends an `until`."""
        self._points.pop(0, None)

    def resolve(self, models: Models) -> list[tuple[Point, int]]:
        """Look up where the points are; the points that found new places, with how many."""
        grown = []
        for point in self:
            before = len(point.targets)
            point.resolve(models)
            if len(point.targets) > before:
                grown.append((point, len(point.targets) - before))
        return grown
