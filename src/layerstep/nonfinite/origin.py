"""Where a value that is not finite was born: what the search finds and the views show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from layerstep.calls.operations import Place
from layerstep.nonfinite.kernel_trace import Link
from layerstep.tensors.finite import Bad

__all__ = ["Origin", "Part"]


_NOWHERE, _NOTHING = Place(), Bad()


class Part(StrEnum):
    """The parts of a training step."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    STEP = "optimizer step"


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation that made it, with its operands; or what came in with it, or that it was not found."""

    part: Part
    seen: str
    """What was noticed: `the output of model has 3 nan of 10`."""
    forward: int = 0
    op: str = ""
    detail: str = ""
    """The kernel, or the autograd node."""
    place: Place = _NOWHERE
    path: str = ""
    kind: str = ""
    """The class of the module."""
    bad: Bad = _NOTHING
    operands: tuple[tuple[str, Any], ...] = ()
    results: tuple[tuple[str, Any], ...] = ()
    source: str = ""
    """What the bad value came in with, if no operation made it."""
    chain: tuple[Link, ...] = ()
    """From what was noticed back to the operation."""
    note: str = ""
    is_from_ranks: bool = False
    """Another rank has made it."""

    @property
    def is_found(self) -> bool:
        return bool(self.op or self.source)
