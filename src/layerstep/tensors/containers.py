"""The tensors in nested containers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from layerstep._torch.tensors import is_tensor

__all__ = ["tensors_of"]


def tensors_of(value: Any, depth: int = 5) -> list[torch.Tensor]:
    """The tensors in nested containers, in their order."""
    if is_tensor(value):
        return [value]
    if not depth:
        return []
    if isinstance(value, dict):
        items: Any = value.values()
    elif isinstance(value, list | tuple):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return []
    return [tensor for item in items for tensor in tensors_of(item, depth - 1)]
