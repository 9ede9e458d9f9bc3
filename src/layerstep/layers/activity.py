"""Units that were never active, counted over forwards, because one batch says little."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass

import torch

from layerstep._torch import below_everything
from layerstep.calls.stack import Frame
from layerstep.engine.instrument import Instrument
from layerstep.engine.point import Point
from layerstep.engine.session import Session
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.shapes import tensors_in

__all__ = ["ENOUGH", "Activity", "ActivityCount", "Units"]

ENOUGH = 1_000
"""The fewest samples.

No healthy run of 63 had half of a layer silent throughout, but 10 % had for one batch.
"""

MOST_CALLS = 8
"""The most calls of one layer in one forward with a row of their own; later ones count with the last."""


@dataclass(slots=True)
class Units:
    """The units of one call of a layer, and which of them were ever nonzero."""

    name: str
    axis: int
    dims: int
    active: torch.Tensor
    samples: int = 0

    @property
    def silent(self) -> list[int]:
        with below_everything():
            return [int(index) for index in (~self.active).nonzero().flatten().tolist()]


class ActivityCount(Instrument):
    """What `grad dead` counts for a session: the point that sees the layers, and what it has seen."""

    def __init__(self, session: Session) -> None:
        self.point: Point | None = None
        self.activity: Activity | None = None


class Activity:
    """Counts at the exits of modules. A module that is called several times has a row for each call."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._units: dict[tuple[str, int, int], Units] = {}
        self._forward = -1
        self._calls: defaultdict[str, int] = defaultdict(int)

    @property
    def units(self) -> list[Units]:
        return list(self._units.values())

    def see(self, frame: Frame) -> None:
        """A module has finished: note the nonzero units of its output."""
        leaves = tensors_in(frame.output, most=1)
        if not leaves or frame.module is None:
            return
        owner = self._session.run.models.owner_of(frame.module)
        forward = owner.forwards if owner is not None else 0
        if forward != self._forward:
            self._forward = forward
            self._calls.clear()
        path = frame.path.partition("|")[0]
        self._calls[path] = min(self._calls[path] + 1, MOST_CALLS)
        with below_everything(), contextlib.suppress(Exception):  # a kind that cannot be compared with zero
            values = dense_values(leaves[0][1])
            if values is not None and values.dim() >= 2 and values.numel():
                self._count(path, self._calls[path], values)

    def _count(self, path: str, call: int, values: torch.Tensor) -> None:
        axis = 1 if values.dim() >= 4 else values.dim() - 1  # images have their channels in front
        others = [dim for dim in range(values.dim()) if dim != axis]
        active = (values != 0).any(dim=others) if len(others) > 1 else (values != 0).any(dim=others[0])
        key = (path, call, int(active.numel()))
        units = self._units.get(key)
        if units is None:
            name = path if call == 1 else f"{path}, call {call}"
            units = self._units[key] = Units(name, axis, values.dim(), torch.zeros_like(active))
        units.active |= active.to(units.active.device)
        units.samples += int(values.shape[0])
