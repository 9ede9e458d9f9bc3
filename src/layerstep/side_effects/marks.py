"""Tensors as they are before a line, to tell afterwards which of them it has written to.

Torch counts the writes to a tensor, so a look before and after is enough. Inference tensors have no count,
and writes through `.data` or numpy are not counted: for these the values are summed up while they are small.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import Tensor

from layerstep._torch.tensors import version_of
from layerstep.module_paths.models import Models
from layerstep.side_effects.guard import state_of
from layerstep.side_effects.random_streams import OtherThreads, RandomState
from layerstep.side_effects.reachable import MOST, Reach
from layerstep.tensors.observing import checksum, observing, size_of

__all__ = ["Baseline", "Marks"]

STATE_BYTES, PAUSE_BYTES = 1 << 30, 256 << 20
"""Values that are read once a pause, of the models and of the rest, for writes that are not counted."""


class _Mark(NamedTuple):
    name: str
    tensor: weakref.ref[Tensor]
    version: int
    """-1: it has no count of writes."""
    sum: int | None


class Marks:
    """Tensors as they are now. Each is held weakly: a line may let go of one."""

    def __init__(self, reach: Reach, *, budget: int, every: bool) -> None:
        self._marks: list[_Mark] = []
        self.unchecked: list[str] = []
        """What may change unseen: tensors by name, then what was not looked at."""
        self.large = 0
        """Tensors whose values were to be summed and are too large: only counted writes are seen."""
        with observing():
            for name, tensor in reach.tensors:
                version = version_of(tensor)
                size = size_of(tensor) if every or version < 0 else None
                is_small = size is not None and size <= budget
                budget -= size if is_small and size is not None else 0
                if not is_small and version < 0:
                    self.unchecked.append(name)
                elif not is_small and every:
                    self.large += 1
                sum_ = checksum(tensor) if is_small else None
                self._marks.append(_Mark(name, weakref.ref(tensor), version, sum_))
        if reach.is_cut:
            self.unchecked.append(f"all but the first {MOST:,} objects in reach")

    def __len__(self) -> int:
        return len(self._marks)

    def changed(self) -> list[str]:
        """The names of those that are no longer what they were."""
        with observing():
            return [mark.name for mark in self._marks if _has_changed(mark)]


def _has_changed(mark: _Mark) -> bool:
    tensor = mark.tensor()
    if tensor is None:
        return False
    if version_of(tensor) != mark.version:
        return True
    return mark.sum is not None and (size_of(tensor) is None or checksum(tensor) != mark.sum)


class Baseline:
    """The run before the first line of a pause that could write."""

    def __init__(self, models: Models, reach: Reach) -> None:
        self.streams, self.threads = RandomState(), OtherThreads()
        state = Reach()
        state.tensors += state_of(models)
        self.state = Marks(state, budget=STATE_BYTES, every=True)
        self.others = Marks(reach, budget=PAUSE_BYTES, every=True)

    def changed(self) -> list[str]:
        """What is other than it was, also where no write was counted."""
        return self.state.changed() + self.others.changed()

    @property
    def unchecked(self) -> list[str]:
        large = self.state.large + self.others.large
        more = [f"uncounted writes to {large} large tensors"] if large else []
        return self.state.unchecked + self.others.unchecked + more
