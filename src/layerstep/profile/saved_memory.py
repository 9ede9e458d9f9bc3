"""Memory by module in one forward: what is kept for the backward, and what a call needs."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from layerstep._torch.saved import key_of
from layerstep.profile.stamps import Mark
from layerstep.profile.timing import MarkKind
from layerstep.tensors.autograd_graph import inner_tensors, size_of, walk
from layerstep.tensors.containers import with_attributes
from layerstep.tensors.observing import observing

__all__ = ["Needed", "saved_by_module"]


def saved_by_module(marks: Iterable[Mark], module: nn.Module, inputs: Any, output: Any) -> Counter[int]:
    """Bytes that autograd keeps behind an output, by the key of the module whose node kept them first.

    Each memory counts once; parameters, buffers and inputs, which are there anyway, do not. Nor does what was
    kept before the call, where its input is the output of another model.
    """
    numbers, owners, running, begin = list[int](), list[int](), list[int](), 0
    for kind, _, _, key, number in marks:
        if kind == MarkKind.ENTER:
            begin = begin if running else number
            running.append(key)
        elif kind == MarkKind.EXIT and running:
            running.pop()
        else:
            continue
        if number and (not numbers or number >= numbers[-1]):
            numbers.append(number)
            owners.append(running[-1] if running else -1)
    with observing():
        there = {key_of(x) for x in (*module.parameters(), *module.buffers(), *inner_tensors(inputs))}
        found = Counter[int]()
        for held in walk([tensor.grad_fn for tensor in inner_tensors(with_attributes(output))]).held:
            at = bisect_right(numbers, held.node) - 1
            if held.node >= begin and held.key not in there and at >= 0 and owners[at] >= 0:
                found[owners[at]] += held.bytes
    return found


class _Storage(weakref.ref[Any]):
    """A weak reference that knows the size of its storage."""

    __slots__ = ("bytes", "key")
    bytes: int
    key: int


class Needed:
    """The most memory that was alive in a call beyond what was there before it, by the key of the module.

    It gets the operands and results of every kernel. Memory that a kernel allocates itself is not seen.
    """

    def __init__(self) -> None:
        self.most = Counter[int]()
        self._live = 0
        self._known: dict[int, _Storage] = {}
        self._calls: list[tuple[int, int, int]] = []
        """For each running call: the module, the bytes alive at its beginning, and the most since."""

    def enter(self, key: int) -> None:
        self._calls.append((key, self._live, self._live))

    def leave(self) -> None:
        key, before, most = self._calls.pop()
        self.most[key] = max(self.most[key], most - before)
        self._rise(most)

    def given(self, operands: Any) -> None:
        """Operands that no kernel has made here were there before."""
        for tensor in inner_tensors(operands):
            self._know(tensor, 0)

    def made(self, results: Any) -> None:
        for tensor in inner_tensors(results):
            self._know(tensor, size_of(tensor))
        self._rise(self._live)

    def close(self) -> None:
        self._known.clear()

    def _know(self, tensor: Tensor, size: int) -> None:
        key = key_of(tensor)
        if not key or key in self._known:
            return
        reference = _Storage(tensor.untyped_storage(), self._freed)
        reference.bytes, reference.key = size, key
        self._known[key] = reference
        self._live += size

    def _freed(self, reference: Any) -> None:
        known = self._known.get(reference.key)
        if known is not None and known is reference:
            del self._known[known.key]
            self._live -= known.bytes

    def _rise(self, live: int) -> None:
        if self._calls and live > self._calls[-1][2]:
            self._calls[-1] = (*self._calls[-1][:2], live)
