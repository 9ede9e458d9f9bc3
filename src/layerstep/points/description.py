"""Points in words: where one is, and the answer to setting it."""

from __future__ import annotations

from layerstep.engine.point import Point
from layerstep.engine.points import BreakAtOp, Catch
from layerstep.views import Notice
from layerstep.watchpoints.watchpoint import Watchpoint

__all__ = ["confirmation", "described"]


def described(point: Point) -> str:
    """Where a point is, in a few words."""
    if isinstance(point, Watchpoint):
        return point.name
    if point.source_line is not None:
        return point.source_line.label
    if point.where is None and isinstance(point, Catch):
        return "the models"
    if isinstance(point, BreakAtOp):
        return f"op:{point.op}" + (f" in {_modules(point)}" if point.where is not None else "")
    return _modules(point)


def _modules(point: Point) -> str:
    if point.is_pending:
        return point.where.text if point.where else "**"
    if len(point.targets) == 1:
        return point.targets[0][0]
    return f"{point.where.text if point.where else '**'} ({len(point.targets)} modules)"


def confirmation(point: Point, words: str = "", *, what: str = "") -> Notice:
    """The answer to setting a point."""
    text = f"{point.kind} {point.number}{what} at {described(point)}{words}"
    if point.source_line is not None:
        waits = f"{text}, pending until such a file is loaded"
        return Notice(waits if point.is_pending else text, point.source_line.moved, level="good")
    if point.trouble:
        return Notice(f"{text}, pending", point.trouble, level="warn")
    return Notice(f"{text}, pending until a model runs" if point.is_pending else text, level="good")
