"""The data loaders that are being read. Seen on torch 2.13.0."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import torch.utils.data.dataloader as _loaders

__all__ = ["Reading", "loaders_at_work"]


class Reading(NamedTuple):
    """A loader that is being read: its dataset, and what draws the samples."""

    dataset: Any
    sampler: Any


def loaders_at_work() -> list[Reading]:
    """Every loader that a loop of the program reads now. It searches the objects of the process: 50 ms.

    Fallback: none, so that splits are compared by their samples alone.
    """
    kind = getattr(_loaders, "_BaseDataLoaderIter", None)
    if kind is None:
        return []
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    return [Reading(getattr(each, "_dataset", None), getattr(each, "_index_sampler", None)) for each in found]
