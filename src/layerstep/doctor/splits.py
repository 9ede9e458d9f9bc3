"""Which rows of a dataset are trained on, and which an evaluation reads: the loaders at work tell.

Where samples are changed at random as they are read, their checksums say nothing, and their rows do.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset, SubsetRandomSampler

from layerstep._torch.loaders import Reading, loaders_at_work

__all__ = ["Splits"]

EVALUATIONS = 2
"""Evaluations that are asked."""
MOST = 1 << 20
"""Rows of a dataset that are compared."""


class Splits:
    """Compares the rows of training and evaluation."""

    def __init__(self) -> None:
        self._trained: Reading | None = None
        self._left = EVALUATIONS

    def training(self) -> None:
        """A training step was looked at: which loader is at work? With several, none can be told."""
        found = loaders_at_work()
        self._trained = found[0] if len(found) == 1 else None

    def evaluation(self) -> tuple[int, int] | None:
        """An evaluation has begun: how many of its rows are trained on, and how many it has."""
        if self._trained is None or not self._left:
            return None
        self._left -= 1
        others = [each for each in loaders_at_work() if each.dataset is not self._trained.dataset]
        if len(others) != 1:
            return None
        (root, trained), (other, evaluated) = _rows(self._trained), _rows(others[0])
        if root is not other or not evaluated:
            return None
        return len(evaluated & trained), len(evaluated)


def _rows(reading: Reading) -> tuple[Any, set[int]]:
    """The dataset below all parts of it, and the rows of it that are read; nothing if they cannot be told."""
    dataset = reading.dataset
    sampler = getattr(reading.sampler, "sampler", reading.sampler)
    try:
        if len(dataset) > MOST:
            return None, set()
        chosen = list(sampler.indices) if isinstance(sampler, SubsetRandomSampler) else range(len(dataset))
        while isinstance(dataset, Subset):
            chosen = [int(dataset.indices[each]) for each in chosen]
            dataset = dataset.dataset
    except Exception:  # a dataset without a length, or one of the program's own making
        return None, set()
    return dataset, set(chosen)
