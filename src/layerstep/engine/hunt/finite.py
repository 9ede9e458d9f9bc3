"""Is a tensor finite? One sum tells, because a NaN or Inf stays in it: a thirtieth of `isfinite().all()`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from layerstep.engine._torch import below_everything, foreach_norm

__all__ = ["Bad", "count_bad", "is_finite", "is_same", "not_finite"]

_HALF = (torch.float16, torch.bfloat16)


class Bad(NamedTuple):
    """What is not finite in a tensor."""

    nan: int = 0
    plus: int = 0
    minus: int = 0
    total: int = 0
    first: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.nan or self.plus or self.minus)

    def __str__(self) -> str:
        pairs = ((self.nan, "nan"), (self.plus, "+inf"), (self.minus, "-inf"))
        found = ", ".join(f"{count:,} {word}" for count, word in pairs if count)
        at = f", first at {list(self.first)}" if self.first else ""
        return f"{found} of {self.total:,}{at}"


def _is_plain(tensor: Tensor) -> bool:
    """Has it values that can be summed? Integers have nothing to be wrong with."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return False
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0


def is_finite(tensor: Tensor) -> bool:
    """No NaN, no Inf. One reduction and one synchronisation; a sum that overflows is looked at closely."""
    with below_everything():
        try:
            if not _is_plain(tensor):
                return True
            total = tensor.sum(dtype=torch.float32) if tensor.dtype in _HALF else tensor.sum()
            value = total.item()
            if math.isfinite(abs(value)):
                return True
            return bool(torch.isfinite(tensor).all())
        except (RuntimeError, NotImplementedError):  # inside vmap, freed, no such kernel
            return True


def count_bad(tensor: Tensor) -> Bad:
    """How much of it is not finite, and where the first such element is."""
    with below_everything():
        try:
            if not _is_plain(tensor):
                return Bad()
            plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            wrong = ~torch.isfinite(plain)
            if not wrong.any():
                return Bad(total=tensor.numel())
            where = int(wrong.reshape(-1).to(torch.uint8).argmax())
            first = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), plain.shape))
            return Bad(
                int(plain.isnan().sum()),
                int((plain == math.inf).sum()),
                int((plain == -math.inf).sum()),
                tensor.numel(),
                first[: tensor.dim()],
            )
        except (RuntimeError, NotImplementedError):
            return Bad()


def _total(tensors: list[Tensor]) -> Tensor:
    """Not finite if one of them is not. On the CPU sums are a quarter cheaper than norms by one call."""
    if all(each.is_cpu for each in tensors):
        return torch.stack([each.sum(dtype=torch.float32) for each in tensors]).sum()
    norms = foreach_norm(tensors, 2, dtype=torch.float32)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).sum()


def is_same(one: Tensor, other: Tensor) -> bool:
    """Are the values equal, NaN with NaN?"""
    with below_everything():
        try:
            return bool(((one == other) | ((one != one) & (other != other))).all())
        except (RuntimeError, NotImplementedError):
            return False


def not_finite(tensors: Iterable[Tensor]) -> list[int]:
    """Which of many tensors hold a NaN or Inf. If none does: one reduction over all, one synchronisation."""
    every = list(tensors)
    with below_everything():
        plain = [(index, each) for index, each in enumerate(every) if _is_plain(each)]
        if not plain:
            return []
        with contextlib.suppress(RuntimeError, NotImplementedError):  # complex numbers
            if math.isfinite(float(_total([each for _, each in plain]))):
                return []
        return [index for index, each in plain if not is_finite(each)]
