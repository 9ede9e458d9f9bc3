"""Outputs that were kept to compare with: the proof that a forward has come back to the same bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerstep._torch.tensors import raw_bytes
from layerstep.tensors.clones import clone_of
from layerstep.tensors.kinds import readable
from layerstep.tensors.observing import checksum, observing
from layerstep.tensors.shapes import tensors_in

__all__ = ["Comparison", "KeptOutput", "keep_output"]

MOST_TENSORS = 64
"""Of one output."""


class _Kept(NamedTuple):
    place: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    mark: int
    copy: Tensor | None


KeptOutput = tuple[_Kept, ...]


def keep_output(output: Any, *, room: int) -> tuple[KeptOutput, int]:
    """The checksums of an output, with copies as far as there is room; and the bytes of these copies."""
    kept: list[_Kept] = []
    used = 0
    with observing():
        for place, tensor in tensors_in(output, most=MOST_TENSORS):
            for part in _values(tensor):
                size = part.numel() * part.element_size()
                copy = clone_of(part).cpu() if used + size <= room else None
                used += size if copy is not None else 0
                kept.append(_Kept(place, tuple(part.shape), part.dtype, checksum(part), copy))
    return tuple(kept), used


def _values(tensor: Tensor) -> list[Tensor]:
    """The plain tensors in it: of a nested or sparse one its parts, inside vmap that of all samples.

    Of an expanded dimension one index: 80 GB may lie in one element.
    """
    try:
        return [_once(part.detach().resolve_conj().resolve_neg()) for part in readable(tensor)[0]]
    except Exception:  # a kind of tensor unknown here: its values are not compared
        return []


def _once(part: Tensor) -> Tensor:
    return part[tuple(slice(None if step else 1) for step in part.stride())]


class Comparison:
    """How many outputs were compared, and which of them differ."""

    def __init__(self) -> None:
        self._compared: set[int] = set()
        self._different: dict[int, tuple[str, str]] = {}

    @property
    def compared(self) -> int:
        return len(self._compared)

    @property
    def different(self) -> list[tuple[str, str]]:
        """The path of each that differs, and where it does so first; in the order of the forward."""
        return [self._different[number] for number in sorted(self._different)]

    def compare(self, number: int, path: str, *, before: KeptOutput, now: KeptOutput) -> None:
        """Compare what a module returned in two runs; `number` is that of the call."""
        if not before and not now:
            return
        self._compared.add(number)
        where = _difference(before, now)
        if where is not None:
            self._different.setdefault(number, (path, where))


def _difference(before: KeptOutput, now: KeptOutput) -> str | None:
    if [each.place for each in before] != [each.place for each in now]:
        return "it has other tensors"
    for one, other in zip(before, now, strict=True):
        if (one.shape, one.dtype, one.mark) != (other.shape, other.dtype, other.mark):
            return ", ".join(filter(None, (one.place, _first(one, other))))
    return None


def _first(one: _Kept, other: _Kept) -> str:
    """Where two tensors differ first, as far as copies of both were kept."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{list(other.shape)} {other.dtype}, before {list(one.shape)} {one.dtype}"
    if one.copy is None or other.copy is None:
        return ""
    with observing():
        differ = (raw_bytes(one.copy) != raw_bytes(other.copy)).nonzero()
        if not len(differ):
            return ""
        number = int(differ[0]) // one.copy.element_size()
    index = []
    for size in reversed(one.shape):
        index.append(number % size)
        number //= size
    return f"first at {index[::-1]}"
