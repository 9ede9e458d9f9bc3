"""A value for each module, by its identity: the class of a module may have an `==` and a hash of its own."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import nn

__all__ = ["ByModule"]

Value = TypeVar("Value")


class ByModule(Generic[Value]):
    """Keeps no module alive, and forgets the value with the module."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[nn.Module], Value]] = {}

    def get(self, module: nn.Module) -> Value | None:
        """The value of this module, None if it has none."""
        found = self._values.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def put(self, module: nn.Module, value: Value) -> Value:
        """Give the module this value."""
        key, values = id(module), self._values
        values[key] = (weakref.ref(module, lambda _: values.pop(key, None)), value)
        return value
