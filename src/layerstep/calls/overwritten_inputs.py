"""Inputs that a module overwrites in place: what they were, for a stop at its exit.

Where a point stops at the exit of a module that may do so, the count of writes to each input is noted at its
entry, and a copy is taken of small ones. At its exit the counts tell which were overwritten.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_whole, version_of
from layerstep.tensors.clones import clone_of
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.observing import observing

__all__ = ["Overwritten", "OverwrittenInputs", "before_call", "may_overwrite"]

MOST_INPUTS = 8
BUDGET = 64 << 20
"""Bytes of all copies together; the oldest go first."""


class Overwritten(NamedTuple):
    """An input that the call has written to, and a copy of what it was if one was taken."""

    tensor: Tensor
    before: Tensor | None


class _Noted(NamedTuple):
    tensor: weakref.ref[Tensor]
    version: int
    before: Tensor | None
    size: int
    """The bytes of the copy."""


def may_overwrite(module: nn.Module) -> bool:
    """May its forward write to its input? Of torch's own layers only those with `inplace=True` do."""
    return any(
        vars(part).get("inplace") is True or not type(part).__module__.startswith("torch.nn.")
        for part in module.modules()
    )


class OverwrittenInputs:
    """What modules were called with last, as far as it may be overwritten."""

    def __init__(self) -> None:
        self._noted: OrderedDict[int, list[_Noted]] = OrderedDict()
        self._last: list[_Noted] = []
        """Of the call before: a module often hands its input on to the first one inside it."""
        self._bytes = 0

    def note(self, module: nn.Module, args: Any, kwargs: Any, *, limit: int) -> None:
        """A call begins. Inputs of more than `limit` bytes are not copied."""
        with observing():
            self._drop(id(module))
            inputs = tensors_of((args, kwargs))[:MOST_INPUTS]
            self._last = found = [_noted_before(self._last, each) or _note(each, limit) for each in inputs]
            self._noted[id(module)] = found
            for each in found:
                self._bytes += each.size
            while self._bytes > BUDGET:
                self._drop(next(iter(self._noted)))

    def overwritten(self, module: nn.Module) -> tuple[Overwritten, ...]:
        """A call has ended: the inputs that it has written to."""
        with observing():
            found = ((noted.tensor(), noted) for noted in self._noted.get(id(module), ()))
            return tuple(
                Overwritten(tensor, noted.before)
                for tensor, noted in found
                if tensor is not None and _was_written(tensor, noted)
            )

    def clear(self) -> None:
        self._noted.clear()
        self._last = []
        self._bytes = 0

    def _drop(self, key: int) -> None:
        for each in self._noted.pop(key, ()):
            self._bytes -= each.size


def _noted_before(known: list[_Noted], tensor: Tensor) -> _Noted | None:
    """What is known of this tensor, if it was not written since."""
    for each in known:
        if each.tensor() is tensor:
            return each if each.version == version_of(tensor) >= 0 else None
    return None


def _note(tensor: Tensor, limit: int) -> _Noted:
    before, size = None, 0
    try:
        if is_whole(tensor):  # as most are; the questions below take as long as a copy
            if tensor.nbytes <= limit:
                before, size = tensor.clone(), tensor.nbytes
        elif tensor.numel() * tensor.element_size() <= limit and not tensor.is_meta:
            before = clone_of(tensor)
            size = before.numel() * before.element_size()
    except Exception:  # nested, freed, of a kind that cannot be copied
        before = None
    return _Noted(weakref.ref(tensor), version_of(tensor), before, size)


def _was_written(tensor: Tensor, noted: _Noted) -> bool:
    if noted.version >= 0:
        return version_of(tensor) != noted.version
    try:
        return noted.before is not None and not torch.equal(tensor, noted.before)
    except Exception:  # a kind of tensor that does not compare
        return False


def before_call(known: tuple[Overwritten, ...], value: Any, *, limit: int, name: str) -> tuple[Any, str]:
    """A value with the copies in place of what was overwritten; a tensor, or a container of some."""
    met: list[Overwritten] = []

    def before(item: Any) -> Any:
        found = next((each for each in known if each.tensor is item), None)
        if found is None:
            return item
        met.append(found)
        return item if found.before is None else found.before

    if isinstance(value, tuple | list):
        value = type(value)(map(before, value)) if type(value) in (tuple, list) else value
    elif isinstance(value, dict):
        value = {key: before(item) for key, item in value.items()}
    else:
        value = before(value)
    if not met:
        return value, ""
    if any(each.before is None for each in met):
        more = f"over {limit:,} bytes no copy is taken (`config copy_input_bytes`)"
        return value, f"{name} was overwritten in place: these are its values after the call; {more}"
    return value, f"{name} was overwritten in place by the call: shown as it was before"
