"""One change that was made on purpose, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Made", "times"]


@dataclass(slots=True, eq=False)
class Made:
    """One edit: as a point that acts at calls, in one call only, or in a weight."""

    number: int
    line: str
    where: str
    state: Callable[[], str]
    """How often it acted, and what of it remains."""
    undo: Callable[[], str]
    """Takes it back, and says what it cannot; raises where that would be wrong."""
    redo: Callable[[], None] | None = None
    is_weight: bool = False
    is_undone: bool = False


def times(count: int) -> str:
    """How often an edit acted, in words."""
    return "not yet" if not count else "acted once" if count == 1 else f"acted {count:,} times"
