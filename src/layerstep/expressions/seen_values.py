"""What is kept of a run for the prompt, bounded in bytes: calls that were passed, results `$1`, `$2`, …"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from layerstep._torch import modes_off
from layerstep._torch.tensors import is_tensor
from layerstep.errors import BadArguments
from layerstep.tensors.clones import clone_of

__all__ = ["Results", "SeenCalls"]


class SeenCalls:
    """Inputs and outputs of modules that a pause or a step has passed, bounded in bytes.

    Keeping is on the way of every module while one steps, so it stores references only. `trim` counts the
    bytes of what has come since: at a pause, and as soon as calls as large as the largest so far would not
    fit any more.
    """

    MOST_UNCOUNTED = 256

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._calls: OrderedDict[int, tuple[Any, Any, Any]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._uncounted: list[int] = []
        self._fitting = 1
        """So many calls may come before they are counted."""
        self._total = 0
        self._largest = 0

    def keep(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        key = id(module)
        self._calls[key] = (args, kwargs, output)
        self._calls.move_to_end(key)
        self._total -= self._sizes.pop(key, 0)
        self._uncounted.append(key)
        if len(self._uncounted) >= self._fitting:
            with modes_off():
                self.trim()

    def trim(self) -> None:
        """Let go of the oldest until the rest fits the budget."""
        uncounted, self._uncounted = self._uncounted, []
        for key in uncounted:
            if key not in self._sizes and (call := self._calls.get(key)) is not None:
                self._sizes[key] = size = _nbytes(call)
                self._total += size
                self._largest = max(self._largest, size)
        while self._total > self.budget and self._calls:
            key, _ = self._calls.popitem(last=False)
            self._total -= self._sizes.pop(key, 0)
        fitting = (self.budget - self._total) // self._largest if self._largest else 1
        self._fitting = min(max(fitting, 1), self.MOST_UNCOUNTED)

    def clear(self) -> None:
        self._calls.clear()
        self._sizes.clear()
        self._uncounted.clear()
        self._total = 0

    def get(self, module: nn.Module) -> tuple[Any, Any, Any] | None:
        return self._calls.get(id(module))


def _nbytes(value: Any, depth: int = 4) -> int:
    if is_tensor(value):
        try:
            return value.numel() * value.element_size()
        except Exception:  # uninitialised parameters and other tensors without a size
            return 0
    if depth and isinstance(value, dict):
        return sum(_nbytes(item, depth - 1) for item in list(value.values())[:64])
    if depth and isinstance(value, (tuple, list)):
        return sum(_nbytes(item, depth - 1) for item in value[:64])
    return 0


class Results:
    """`$1`, `$2`, …: earlier results, bounded in number and bytes.

    Tensors are copied without their graph, modules held weakly, and what may hide tensors is kept only until
    the run goes on: a debugger must not keep memory alive that the run has let go of.
    """

    def __init__(self, budget: int, most: int = 100) -> None:
        self.budget = budget
        self.most = most
        self._values: OrderedDict[int, Any] = OrderedDict()
        self._passing: set[int] = set()
        self._last = 0

    def keep(self, value: Any) -> int | None:
        """The number under which a value is kept, None if it is not."""
        if value is None or _nbytes(value) > self.budget:
            return None
        try:
            kept = weakref.ref(value) if isinstance(value, nn.Module) else _copied(value)
        except Exception:  # freed, inside vmap, a subclass that refuses: there is nothing to keep
            return None
        self._last += 1
        self._values[self._last] = kept
        if not isinstance(value, nn.Module) and not _is_plain(value):
            self._passing.add(self._last)
        while len(self._values) > self.most or sum(map(_nbytes, self._values.values())) > self.budget:
            self._values.popitem(last=False)
        return self._last

    def let_go(self) -> None:
        """The run goes on: drop what may hold more than is seen."""
        for number in self._passing:
            self._values.pop(number, None)
        self._passing.clear()

    def __getitem__(self, number: int) -> Any:
        key = number if number >= 0 else self._last + 1 + number
        value = self._values.get(key, self)
        if isinstance(value, weakref.ref):
            value = value()
        if value is not self and value is not None:
            return value
        hint = (
            f"there are $1 to ${self._last}, as far as they are kept"
            if self._last
            else "nothing was shown yet"
        )
        raise BadArguments(f"no result ${key}" if key > 0 else "no such result yet", hint)


def _copied(value: Any, depth: int = 4) -> Any:
    if is_tensor(value):
        return clone_of(value)
    if depth and type(value) in (tuple, list):
        return type(value)(_copied(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return {key: _copied(item, depth - 1) for key, item in value.items()}
    return value


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Is nothing left in a copy of this that could hold the run's tensors?"""
    if isinstance(
        value, torch.Tensor | torch.Size | torch.dtype | torch.device | str | bytes | int | float | complex
    ):
        return True
    if depth and type(value) in (tuple, list):
        return all(_is_plain(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return all(_is_plain(item, depth - 1) for item in value.values())
    return value is None
