"""Is a tensor finite? One sum tells, because a NaN or Inf stays in it, at a thirtieth of the cost of
`isfinite().all()`.

Every kind of tensor is read where its values are. Where they cannot be read, `why_unread` says why.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from layerstep._torch import below_everything, foreach_norm
from layerstep.errors import first_line
from layerstep.tensors.kinds import readable

__all__ = ["Bad", "count_bad", "is_finite", "is_same", "not_finite", "why_unread"]

_HALF = (torch.float16, torch.bfloat16)


class Bad(NamedTuple):
    """Counts of what is not finite in a tensor."""

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


def why_unread(tensor: Tensor) -> str:
    """Why the values of a tensor cannot be read here; empty if they can."""
    with below_everything():
        parts, why = readable(tensor)
        if not why and any(part.dtype.itemsize == 1 and part.is_floating_point() for part in parts):
            try:
                for part in parts:
                    _sum_of(part)
            except (RuntimeError, NotImplementedError) as error:
                return first_line(error)
        return why


def _floats(tensor: Tensor) -> list[Tensor]:
    """The parts that can hold a NaN or Inf, which integers cannot."""
    parts, _ = readable(tensor)
    return [each for each in parts if each.numel() and (each.is_floating_point() or each.is_complex())]


def _sum_of(part: Tensor) -> Tensor:
    """One number that is finite only if all are; dtypes of one byte have no kernel for a sum."""
    if part.dtype in _HALF:
        return part.sum(dtype=torch.float32)
    if part.dtype.itemsize == 1 and part.is_floating_point():
        return part.to(torch.float32).sum()
    return part.sum()


def _widened(part: Tensor) -> Tensor:
    return part.to(torch.float32) if part.dtype.itemsize == 1 else part


def is_finite(tensor: Tensor) -> bool:
    """Is there no NaN and no Inf that can be read? One reduction and one synchronisation for each part.

    If a sum overflows, each element is checked.
    """
    with below_everything():
        try:
            for part in _floats(tensor):
                if math.isfinite(abs(_sum_of(part).item())):
                    continue
                if not bool(torch.isfinite(_widened(part)).all()):
                    return False
        except (RuntimeError, NotImplementedError):  # no such kernel: `why_unread` tells
            return True
        return True


def count_bad(tensor: Tensor) -> Bad:
    """How much of it is not finite, and where the first such element is."""
    with below_everything():
        try:
            parts = _floats(tensor)
            if not parts:
                return Bad()
            found = [_count(part) for part in parts]
        except (RuntimeError, NotImplementedError):
            return Bad()
        if len(parts) == 1 and parts[0].shape == tensor.shape and tensor.layout is torch.strided:
            return found[0]
        return Bad(
            sum(each.nan for each in found),
            sum(each.plus for each in found),
            sum(each.minus for each in found),
            sum(each.total for each in found),
        )


def _count(part: Tensor) -> Bad:
    plain = _as_real(part) if part.is_complex() else _widened(part)
    wrong = ~torch.isfinite(plain)
    if not wrong.any():
        return Bad(total=part.numel())
    where = int(wrong.reshape(-1).to(torch.uint8).argmax())
    first = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), plain.shape))
    return Bad(
        int(plain.isnan().sum()),
        int((plain == math.inf).sum()),
        int((plain == -math.inf).sum()),
        part.numel(),
        first[: part.dim()],
    )


def _as_real(part: Tensor) -> Tensor:
    return torch.view_as_real(part.resolve_conj().resolve_neg())


def _total(tensors: list[Tensor]) -> Tensor:
    """A number that is finite only if all tensors are.

    On the CPU, sums are a quarter cheaper than one call for norms. A sum of complex numbers as floats would
    drop the imaginary part, with a warning.
    """
    tensors = [_as_real(each) if each.is_complex() else each for each in tensors]
    if all(each.is_cpu for each in tensors):
        return torch.stack([each.sum(dtype=torch.float32) for each in tensors]).sum()
    norms = foreach_norm(tensors, 2, dtype=torch.float32)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).sum()


def is_same(one: Tensor, other: Tensor) -> bool:
    """Are the values equal, NaN with NaN?"""
    with below_everything():
        try:
            pairs = list(zip(readable(one)[0], readable(other)[0], strict=True))
            return bool(pairs) and all(
                bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())
                for mine, theirs in ((_widened(mine), _widened(theirs)) for mine, theirs in pairs)
            )
        except (RuntimeError, NotImplementedError, ValueError):
            return False


def not_finite(tensors: Iterable[Tensor]) -> list[int]:
    """Which of many tensors hold a NaN or Inf.

    If none does, this costs one reduction and one synchronisation.
    """
    every = list(tensors)
    with below_everything():
        found = [(index, part) for index, each in enumerate(every) for part in _floats(each)]
        if not found:
            return []
        with contextlib.suppress(RuntimeError, NotImplementedError):  # numbers of one byte
            if math.isfinite(float(_total([part for _, part in found]))):
                return []
        return [index for index in dict.fromkeys(index for index, _ in found) if not is_finite(every[index])]
