"""The tensors in nested containers."""

from __future__ import annotations

import dataclasses
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
    if is_tensor(value):
        return [value]
    if not depth or type(value) in _LEAVES:
        return []
    if isinstance(value, dict):
        items: Any = value.values()
    elif isinstance(value, _CONTAINERS):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return []
    return [tensor for item in items for tensor in tensors_of(item, depth - 1)]


def with_attributes(output: Any) -> Any:
    """The value itself if it is a container, else its attributes: a program may return an object."""
    if is_tensor(output) or isinstance(output, dict | list | tuple | set):
        return output
    return tuple(getattr(output, "__dict__", {}).values())
