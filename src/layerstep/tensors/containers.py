"""The tensors in nested containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor

__all__ = ["tensors_of", "with_attributes"]

DEPTH = 5
_CONTAINERS = (list, tuple, set, frozenset)
_LEAVES = frozenset([int, float, bool, str, type(None), torch.dtype, torch.device])
"""The types of most arguments that are not tensors, recognised by one look-up."""


def tensors_of(value: Any, depth: int = DEPTH) -> list[Tensor]:
    """The tensors in lists, tuples, sets, dictionaries and dataclasses, in their order."""
    found: list[Tensor] = []
    _collect((value,), depth, found)
    return found


def _collect(items: Iterable[Any], depth: int, found: list[Tensor]) -> None:
    for item in items:
        kind = type(item)
        if kind in _LEAVES:
            continue
        if issubclass(kind, Tensor):
            found.append(item)
        elif not depth:
            continue
        elif isinstance(item, dict):
            _collect(item.values(), depth - 1, found)
        elif isinstance(item, _CONTAINERS):
            _collect(item, depth - 1, found)
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            fields = dataclasses.fields(item)
            _collect([getattr(item, field.name, None) for field in fields], depth - 1, found)


def with_attributes(output: Any) -> Any:
    """The value itself if it is a container, else its attributes: a program may return an object."""
    if is_tensor(output) or isinstance(output, dict | list | tuple | set):
        return output
    return tuple(getattr(output, "__dict__", {}).values())
