"""Reading values so that the run does not notice: without gradients, modes and autocast."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from layerstep._torch import observation
from layerstep._torch.tensors import raw_bytes
from layerstep.tensors.kinds import readable

__all__ = ["checksum", "observing", "size_of"]


def observing() -> contextlib.AbstractContextManager[None]:
    """No grad, no autocast, none of the user's modes, no transform of torch.func."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return _without_autocast()
    return observation()


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(observation())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.amp.autocast(device, enabled=False))
        yield


def size_of(tensor: Tensor) -> int | None:
    """The bytes of a tensor whose values can be read as they lie in memory; else None."""
    parts, _ = readable(tensor)
    if len(parts) != 1 or parts[0] is not tensor or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.numel() * tensor.element_size()


def checksum(tensor: Tensor) -> int:
    """Sums by row and by column of the raw bytes: both would have to agree for a change to hide.

    Numpy gets results only: a storage that numpy has seen can no longer be resized.
    """
    raw = raw_bytes(tensor)
    raw = raw.clone() if raw.storage_offset() % 8 else raw
    width = 1 << 15
    rows = raw.numel() // width
    whole = raw[: rows * width].view(torch.int64).view(rows, width // 8)
    mark = 0
    for part in (whole.sum(dim=0), whole.sum(dim=1), raw[rows * width :].clone()):
        mark = zlib.crc32(part.numpy().tobytes(), mark)
    return mark
