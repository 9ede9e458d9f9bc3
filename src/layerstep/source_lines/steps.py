"""When does a step by lines end? A pure state machine: (step, moment) -> stop or go, without frames.

`next line`, `until LINE` and `finish` end in the function that they began in (`ORIGIN`) or, when that is
left, in one that called it (`OUTER`). `step line` ends at the next line of the program, wherever it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from layerstep.engine.resume import Kind

__all__ = ["LineMoment", "LineStep", "Side", "decide"]


class Side(Enum):
    """Where a line is, seen from where the step began."""

    ORIGIN = "the function that it began in"
    OUTER = "a function that called it"
    ELSEWHERE = "any other"


@dataclass(frozen=True, slots=True)
class LineStep:
    """A step that is under way."""

    kind: Kind
    thread: int
    count: int = 1
    line: int = 0
    """`until LINE` ends in its own function at this line or a later one."""


@dataclass(frozen=True, slots=True)
class LineMoment:
    """A statement is about to run, or a function returns."""

    thread: int
    side: Side
    line: int = 0
    is_return: bool = False


def decide(step: LineStep, moment: LineMoment) -> tuple[bool, LineStep | None]:
    """Does the run stop here, and what is left of the step?"""
    if moment.thread != step.thread or not _ends(step, moment):
        return False, step
    if step.count > 1:
        return False, replace(step, count=step.count - 1)
    return True, None


def _ends(step: LineStep, moment: LineMoment) -> bool:
    if moment.is_return:
        return step.kind is Kind.RETURN and moment.side is Side.ORIGIN
    if step.kind is Kind.LINE:
        return True
    if moment.side is Side.ORIGIN:
        at_line = step.kind is Kind.UNTIL_LINE and moment.line >= step.line
        return step.kind is Kind.NEXT_LINE or at_line
    return moment.side is Side.OUTER
