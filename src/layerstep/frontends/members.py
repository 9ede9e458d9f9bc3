"""What a value has, by what it is. No code of the user runs: no property, `__getattr__` or `__dir__`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from layerstep._torch.tensors import is_tensor
from layerstep.expressions.scope import PathRef

__all__ = ["member", "members_of"]

_TENSOR = (
    "shape",
    "dtype",
    "device",
    "grad",
    "std()",
    "mean()",
    "min()",
    "max()",
    "abs()",
    "norm()",
    "sum()",
    "isnan()",
    "requires_grad",
    "grad_fn",
)
_PASSED = ("input", "output", "kwargs")
"""What the prompt adds to a module."""
_TABLES = ("_modules", "_parameters", "_buffers")

UNKNOWN = object()


def member(value: Any, name: str) -> Any:
    """What `value.name` holds if that can be known without running anything, else `UNKNOWN`."""
    value = _unwrapped(value)
    own = _own(value)
    for table in (*(_table(own, name_) for name_ in _TABLES), own):
        if name in table:
            return table[name]
    found = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), UNKNOWN)
    return UNKNOWN if hasattr(type(found), "__get__") else found  # a property, a slot, a method


def members_of(value: Any) -> list[str]:
    """The public names of a value, those that people look for first."""
    value = _unwrapped(value)
    if value is UNKNOWN or value is None:
        return list(_TENSOR)
    names = (*_first(value), *_own(value), *(name for base in type(value).__mro__ for name in vars(base)))
    shown = dict.fromkeys(name for name in names if isinstance(name, str) and not name.startswith("_"))
    calls = {name.removesuffix("()") for name in shown if name.endswith("()")}
    return [name for name in shown if name not in calls]


def _first(value: Any) -> Iterator[str]:
    if isinstance(value, nn.Module):
        own = _own(value)
        yield from (name for table in _TABLES for name in _table(own, table))
        yield from (*_PASSED, "training")
    elif is_tensor(value):
        yield from _TENSOR


def _own(value: Any) -> dict[str, Any]:
    """Its `__dict__`, past whatever its class says about that."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _table(own: dict[str, Any], name: str) -> dict[str, Any]:
    found = own.get(name)
    return found if isinstance(found, dict) else {}


def _unwrapped(value: Any) -> Any:
    return value.module if type(value) is PathRef else value
