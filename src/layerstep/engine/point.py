"""What all points have in common: a number, where they are, what is said of them, and their history."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

from torch import nn

from layerstep.calls.events import Phase
from layerstep.errors import UnknownPath
from layerstep.expressions.expression import Expression
from layerstep.module_paths.models import Models
from layerstep.module_paths.where import Where

__all__ = ["LinePlace", "Point", "PointKind"]


class PointKind(StrEnum):
    BREAK = "break"
    CATCH = "catch"
    EDIT = "edit"
    LOG = "log"
    RECORD = "record"
    WATCH = "watch"
    UNTIL = "until"


class LinePlace(Protocol):
    """A line of the program that a point is at."""

    text: str
    file: str
    line: int

    @property
    def moved(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def is_pending(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Point:
    """Something to look out for in the run. It knows its own history, so it can explain its silence."""

    kind: ClassVar[PointKind]
    stops: ClassVar[bool] = True
    """Does the run stop at a hit? Otherwise something is logged or measured."""
    has_question: ClassVar[bool] = False
    """Does it ask more at a call than its condition?"""

    where: Where | None = None
    """The modules that it is at. None: all of them, or none, as its class says."""
    _: KW_ONLY
    phase: Phase = Phase.EXIT
    number: int = 0
    """Given by `Points.add`."""
    condition: Expression | None = None
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0
    """So many hits are still to be counted only."""
    commands: tuple[str, ...] = ()
    hits: int = 0
    tried: int = 0
    """How often the condition was asked."""
    recomputed: int = 0
    """How often it was passed by in a recomputation during backward."""
    targets: list[tuple[str, int]] = field(default_factory=list)
    """(path, id of the module) of every place it is set at; empty while it is pending."""
    is_shared: bool = False
    """It names one path of a module that has several: who called it must be asked."""
    trouble: str = ""
    """Why it is pending, if it is."""

    def line(self) -> str:
        """The command that sets this point again; no one asks the end of an `until`, which is hidden."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """What it is called at a stop: `break 1`."""
        return f"{self.kind} {self.number}" if self.number else ""

    @property
    def source_line(self) -> LinePlace | None:
        """The line that it is at. Then it is at no module."""
        return None

    @property
    def asked_at(self) -> tuple[Phase, ...]:
        """The phases of its modules at which it must be asked."""
        return (self.phase,)

    @property
    def root_phases(self) -> tuple[Phase, ...]:
        """The phases of the outermost modules at which it must be asked, whatever its WHERE."""
        return ()

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
        return self.stops and self.condition is None and not self.is_shared

    def place(self, found: list[tuple[str, nn.Module]], models: Models) -> None:
        """Set it at these modules."""
        self.targets = [(path, id(module)) for path, module in found]
        one = self.where is not None and self.where.is_one
        self.is_shared = one and any(len(models.paths_of(module)) > 1 for _, module in found)

    def resolve(self, models: Models) -> None:
        """Look up where it is, now that the models may be others."""
        if self.where is None:
            return
        if self.where.is_one and self.targets:
            path, key = self.targets[0]
            module = models.at(path)
            if module is not None and id(module) == key:
                self.targets = [(_renamed(path, models.paths_of(module)), key)]
                self.is_shared = len(models.paths_of(module)) > 1
                return
        try:
            found = self.where.look_up(models)
        except UnknownPath as error:
            self.trouble = str(error)
            if not self.targets:
                return
            found = []
        self.trouble = self.trouble if not found else ""
        self.place(found, models)

    def _words(self, *words: str) -> str:
        """The line that sets it again: these words, those that are there, and the condition."""
        condition = f"if {self.condition.text}" if self.condition is not None else ""
        return " ".join(word for word in (*words, condition) if word)


def _renamed(path: str, paths: list[str]) -> str:
    """The path as it is shown now: with a second model it begins with the model's name."""
    return path if path in paths else next((p for p in paths if p.endswith("." + path)), path)
