"""Points: what to stop at, what to log. A point knows its own history, so it can explain its silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from torch import nn

from layerstep.engine.events import Event, Phase
from layerstep.engine.models import Models
from layerstep.engine.where import Where
from layerstep.errors import BadArguments, UnknownPath

if TYPE_CHECKING:
    from layerstep.engine.expression import Expression, Template
    from layerstep.engine.stack import Frame
    from layerstep.engine.stop import Caught

__all__ = ["LinePlace", "Point", "PointKind", "Points"]


class PointKind(StrEnum):
    BREAK = "break"
    CATCH = "catch"
    LOG = "log"
    RECORD = "record"
    WATCH = "watch"
    UNTIL = "until"


class LinePlace(Protocol):
    """A line of the program that a point is at."""

    text: str
    file: str
    line: int
    moved: str

    @property
    def label(self) -> str: ...

    @property
    def is_pending(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Point:
    """A breakpoint, a catchpoint, a logpoint, a recording, or the hidden end of an `until`.

    Watchpoints have a class of their own.
    """

    number: int
    kind: PointKind
    where: Where | None
    """None is every module, as `until EXPR` wants it; of a catchpoint, none but what `root_phases` says."""
    phase: Phase = Phase.EXIT
    source_line: LinePlace | None = None
    """Of a point at a line: the line. Then it is at no module."""
    op: str = ""
    """The operations that it stops after, inside its modules: `softmax`, `*norm*`, `aten.mm`."""
    condition: Expression | None = None
    template: Template | None = None
    action: Callable[[Frame], None] | None = None
    """What it does instead of stopping: a recording measures."""
    check: Callable[[Event], Caught | None] | None = None
    """A catchpoint's own question at an event: what it has caught, if anything."""
    what: str = ""
    """What a catchpoint catches: `nan`, `exception`."""
    phases: tuple[Phase, ...] = ()
    """Where it asks more than at its phase."""
    root_phases: tuple[Phase, ...] = ()
    """What it must hear of the outermost modules, whatever its WHERE."""
    options: str = ""
    """The rest of the line that sets it again, after WHERE."""
    set_by: str = ""
    """The whole of that line, if another command than that of its kind set it."""
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0
    commands: tuple[str, ...] = ()
    hits: int = 0
    tried: int = 0
    """How often the condition was asked."""
    recomputed: int = 0
    """How often it was passed by in a recomputation during backward."""
    unread: str = ""
    """Why a catchpoint could not read a value that it was asked about."""
    targets: list[tuple[str, int]] = field(default_factory=list)
    """(path, id of the module) of every place it is set at; empty while it is pending."""
    is_shared: bool = False
    """It names one path of a module that has several: who called it must be asked."""
    trouble: str = ""
    """Why it is pending, if it is."""

    @property
    def label(self) -> str:
        """What it is called at a stop: `break 1`."""
        return f"{self.kind} {self.number}" if self.number else ""

    @property
    def asked_at(self) -> tuple[Phase, ...]:
        """The phases of its modules that it must hear of."""
        return self.phases or (self.phase,)

    @property
    def level(self) -> Phase:
        """Of a point at operations: those that the user's code calls, or the kernels below them."""
        return Phase.KERNEL if self.op.startswith("aten.") else Phase.OP

    @property
    def is_at_modules(self) -> bool:
        """Does it ask at calls of modules, or at operations in them?"""
        return self.source_line is None

    @property
    def is_pending(self) -> bool:
        if self.source_line is not None:
            return self.source_line.is_pending
        return self.where is not None and not self.targets

    @property
    def is_plain(self) -> bool:
        """Does it stop without a question?"""
        questions = (self.condition, self.template, self.action, self.check)
        return all(each is None for each in questions) and not self.is_shared

    def place(self, found: list[tuple[str, nn.Module]], models: Models) -> None:
        """Set it at these modules."""
        self.targets = [(path, id(module)) for path, module in found]
        one = self.where is not None and self.where.is_one
        self.is_shared = one and any(len(models.paths_of(module)) > 1 for _, module in found)

    def line(self) -> str:
        """The command that sets this point again."""
        if self.set_by:
            return self.set_by
        word = "tbreak" if self.temporary else self.kind.value
        parts = [word, self.where.text if self.where else "**"]
        if self.source_line is not None:
            parts = [word, self.source_line.text]
        if self.op:
            parts = [word, f"op:{self.op}", *(("in", self.where.text) if self.where else ())]
        if self.phase is not Phase.EXIT and self.source_line is None:
            parts.append(self.phase.value)
        if self.template is not None:
            parts.append(self.template.quoted)
        if self.options:
            parts.append(self.options)
        if self.condition is not None:
            parts.append(f"if {self.condition.text}")
        return " ".join(parts)


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
        return [point for point in self if point.kind is not PointKind.UNTIL]

    def add(self, kind: PointKind, where: Where | None, **options: object) -> Point:
        number = 0 if kind is PointKind.UNTIL else self.next_number()
        point = Point(number, kind, where, **options)  # type: ignore[arg-type]
        self._points[number] = point
        return point

    def next_number(self) -> int:
        """A number that nothing else has: points and watched expressions share them."""
        self.last += 1
        return self.last

    def take(self, point: Point) -> None:
        """Number a point that was made elsewhere, and keep it with the others."""
        point.number = self.next_number()
        self._points[point.number] = point

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
            self._resolve(point, models)
            if len(point.targets) > before:
                grown.append((point, len(point.targets) - before))
        return grown

    @staticmethod
    def _resolve(point: Point, models: Models) -> None:
        if point.where is None:
            return
        if point.where.is_one and point.targets:
            path, key = point.targets[0]
            module = models.at(path)
            if module is not None and id(module) == key:
                point.targets = [(_renamed(path, models.paths_of(module)), key)]
                point.is_shared = len(models.paths_of(module)) > 1
                return
        try:
            found = point.where.look_up(models)
        except UnknownPath as error:
            point.trouble = str(error)
            if not point.targets:
                return
            found = []
        point.trouble = point.trouble if not found else ""
        point.place(found, models)


def _renamed(path: str, paths: list[str]) -> str:
    """The path as it is shown now: with a second model it begins with the model's name."""
    return path if path in paths else next((p for p in paths if p.endswith("." + path)), path)
