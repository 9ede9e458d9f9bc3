"""Gradients that are still there when `backward()` adds to them.

Only what `backward()` itself was seen to add to counts. A gradient that the program sets or copies is not
stale, though nothing clears it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from layerstep._torch.tensors import version_of

__all__ = ["KeptGradients"]

ASKED = 4
"""Parameters of each optimizer whose gradients are asked in every step whether they were cleared."""


class _Kept(NamedTuple):
    """A gradient after a step, to tell at the next one whether it was cleared between them."""

    name: str
    parameter: weakref.ref[Tensor]
    gradient: int
    version: int

    @property
    def now(self) -> Tensor | None:
        parameter = self.parameter()
        return parameter.grad if parameter is not None else None

    @property
    def is_same(self) -> bool:
        """Is it the same object? The program may have set another one."""
        now = self.now
        return now is not None and id(now) == self.gradient

    @property
    def has_changed(self) -> bool:
        now = self.now
        return now is None or id(now) != self.gradient or version_of(now) != self.version

    @property
    def is_zero(self) -> bool:
        """Is it all zeros? `grad.data.zero_()` does not count its version."""
        now = self.now
        return now is not None and not bool(_values_of(now).any())


class KeptGradients:
    """Follows a few gradients of each optimizer from one step to the next."""

    def __init__(self) -> None:
        self._kept: dict[int, list[_Kept]] = {}
        self._cleared: dict[int, bool] = {}
        self._last: tuple[_Kept, int] | None = None
        """A gradient that the last pass of this step has made, and the version of its parameter."""
        self.lost = 0
        """Passes of this step whose gradients were cleared before the next pass."""
        self._added: dict[int, set[str]] = {}
        """Those that a `backward()` was seen to add to."""

    def keep(self, number: int, named: list[tuple[str, Tensor]]) -> None:
        """An optimizer has stepped: note some of its gradients."""
        with_gradient = [(name, p) for name, p in named if p.grad is not None]
        chosen = with_gradient[:: max(1, -(-len(with_gradient) // ASKED))]
        found = [_kept(name, weakref.ref(p)) for name, p in chosen]
        self._kept[number] = [each for each in found if each is not None]
        self._cleared[number] = not self._kept[number]
        self._added[number] = set()

    def forget(self) -> None:
        """What is known is too old: say nothing until the next step of each optimizer is kept."""
        self._kept.clear()
        self._cleared.clear()
        self._added.clear()

    def backward_begins(self) -> None:
        """A gradient that is another object now, was written since or is all zeros, has been cleared."""
        if self._last is not None:
            last, version = self._last
            parameter = last.parameter()
            if parameter is not None and version_of(parameter) == version:  # else a step by hand lies between
                self.lost += last.now is None or last.is_zero
        for number, kept in self._kept.items():
            if not self._cleared[number]:
                self._cleared[number] = any(each.has_changed or each.is_zero for each in kept)

    def note_pass(self, parameters: Iterable[Tensor]) -> None:
        """A pass has ended; one of the gradients that it has made is kept in mind."""
        first = next((p for p in parameters if p.grad is not None), None)
        kept = _kept("", weakref.ref(first)) if first is not None else None
        self._last = (
            (kept, version_of(first)) if kept is not None and not kept.is_zero and first is not None else None
        )

    def take_lost(self) -> int:
        """How many passes of the step have counted for nothing."""
        taken, self.lost, self._last = self.lost, 0, None
        return taken

    def backward_ended(self) -> None:
        """The pass has added to the gradients. That does not count as clearing them."""
        for number, kept in self._kept.items():
            if not self._cleared[number]:
                self._added[number].update(each.name for each in kept if each.has_changed)
            after = [_kept(each.name, each.parameter) for each in kept]
            self._kept[number] = [each for each in after if each is not None]

    def names(self, number: int) -> tuple[str, ...]:
        """The gradients that were there before `backward()` added to them, and that the step has got."""
        if self._cleared.get(number, True):
            return ()
        added = self._added[number]
        return tuple(
            each.name
            for each in self._kept[number]
            if each.name in added and each.is_same and not each.is_zero
        )


def _kept(name: str, reference: weakref.ref[Tensor]) -> _Kept | None:
    parameter = reference()
    gradient = parameter.grad if parameter is not None else None
    return _Kept(name, reference, id(gradient), version_of(gradient)) if gradient is not None else None


def _values_of(gradient: Tensor) -> Tensor:
    """Those of a sparse one are a tensor of their own."""
    held = gradient.detach()
    return held.coalesce().values() if held.layout is torch.sparse_coo else held
