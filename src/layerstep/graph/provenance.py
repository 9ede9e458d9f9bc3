"""Which operations made what is in a tensor: by the tensor itself, and by its memory after a write.

A tensor has the operation that returned it. What is written in place later, through it or through a view,
is in it, too; a write of the whole memory replaces what was there.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from layerstep._torch.saved import key_of, memory_of
from layerstep._torch.tensors import size_of

__all__ = ["Provenance"]


class _Value(NamedTuple):
    tensor: weakref.ref[Tensor]
    memory: int
    operation: int


class _Write(NamedTuple):
    operation: int
    is_whole: bool


@dataclass(slots=True)
class _Memory:
    made_by: int
    writes: list[_Write] = field(default_factory=list)


class Provenance:
    """Follows tensors by weak references: it keeps no activation alive."""

    def __init__(self, module: nn.Module) -> None:
        self._values: dict[int, _Value] = {}
        self._memory: dict[int, _Memory] = {}
        self._state = {key_of(each) for each in (*module.parameters(), *module.buffers())} - {0}
        """The state of the model is no value that flows: the statistics of a BatchNorm join no calls."""

    def made(self, tensor: Tensor, operation: int, *, is_view: bool) -> None:
        """An operation has returned a tensor."""
        key = key_of(tensor)
        self._values[id(tensor)] = _Value(weakref.ref(tensor), key, operation)
        if key and not is_view:
            self._memory[key] = _Memory(operation)

    def written(self, tensor: Tensor, operation: int) -> None:
        """An operation has written to a tensor in place."""
        key, storage = memory_of(tensor)
        if key in self._state:
            return
        self._values[id(tensor)] = _Value(weakref.ref(tensor), key, operation)
        if not key:
            return
        is_whole = size_of(tensor) >= storage.nbytes()
        if key not in self._memory:
            self._memory[key] = _Memory(operation)
        self._memory[key].writes.append(_Write(operation, is_whole))

    def is_state(self, tensor: Tensor) -> bool:
        """Is it a weight or a buffer of the model, or a view of one?"""
        return key_of(tensor) in self._state

    def sources(self, tensor: Tensor) -> tuple[int, ...]:
        """The operations that made what is in a tensor now; none for weights and what came from outside."""
        key = key_of(tensor)
        value, memory = self._values.get(id(tensor)), self._memory.get(key)
        if value is not None and value.tensor() is tensor and value.memory == key:
            return _latest(value.operation, memory)
        if memory is None or key in self._state:
            return ()
        return _latest(memory.made_by, memory)


def _latest(made_by: int, memory: _Memory | None) -> tuple[int, ...]:
    found = [made_by]
    for write in memory.writes if memory is not None else ():
        if write.operation > made_by:
            found = [write.operation] if write.is_whole else [*found, write.operation]
    return tuple(found)
