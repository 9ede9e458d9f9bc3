"""Tensors exchanged in whatever a module was given or has returned.

A tensor may be there more than once: `hidden_states[-1]` is `last_hidden_state`. So it is exchanged by
identity, wherever it occurs. Containers are rebuilt in their own class. The original is not touched.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError, first_line

__all__ = ["exchange", "floating_tensors"]

DEPTH = 6


def exchange(value: Any, new: Mapping[int, Any]) -> Any:
    """The value with other tensors for those whose ids are in `new`; itself, if it has none of them."""
    return _exchange(value, new, DEPTH)


def _exchange(value: Any, new: Mapping[int, Any], depth: int) -> Any:
    if is_tensor(value):
        return new.get(id(value), value)
    if not depth:
        return value
    if isinstance(value, list | tuple):
        items = [_exchange(item, new, depth - 1) for item in value]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        return _rebuilt(value, lambda: _sequence(value, items))
    if isinstance(value, dict):
        changed = _changed(list(value.items()), new, depth)
        return _rebuilt(value, lambda: _with_items(value, changed)) if changed else value
    names = _attributes(value)
    changed = _changed([(name, getattr(value, name, None)) for name in names], new, depth)
    return _rebuilt(value, lambda: _with_attributes(value, changed)) if changed else value


def _changed(items: list[tuple[Any, Any]], new: Mapping[int, Any], depth: int) -> list[tuple[Any, Any]]:
    found = [(key, item, _exchange(item, new, depth - 1)) for key, item in items]
    return [(key, after) for key, before, after in found if after is not before]


def _attributes(value: Any) -> list[str]:
    """The attributes in which an object may hold tensors."""
    if isinstance(value, type | nn.Module) or callable(value):
        return []
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", ()))


def _rebuilt(value: Any, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except Exception as error:
        line = first_line(error)
        raise UserError(f"a {type(value).__name__} cannot be made anew: {line}") from None


def _sequence(value: Any, items: list[Any]) -> Any:
    kind = type(value)
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*items)
    return kind(items)  # also the named results of torch.max and the like


def _with_items(value: Any, changed: list[tuple[Any, Any]]) -> Any:
    new = copy.copy(value)
    for key, item in changed:
        new[key] = item
    return new


def _with_attributes(value: Any, changed: list[tuple[Any, Any]]) -> Any:
    new = copy.copy(value)
    for name, item in changed:
        object.__setattr__(new, name, item)  # also of a frozen dataclass
    return new


def floating_tensors(value: Any, place: str, depth: int = DEPTH) -> list[tuple[str, Tensor]]:
    """The tensors of real or complex numbers in a value, each with the expression that names it."""
    if is_tensor(value):
        return [(place, value)] if value.is_floating_point() or value.is_complex() else []
    if not depth:
        return []
    items: list[tuple[str, Any]]
    if isinstance(value, list | tuple):
        items = [(f"{place}[{at}]", item) for at, item in enumerate(value)]
    elif isinstance(value, dict):
        items = [(f"{place}[{key!r}]", item) for key, item in value.items()]
    else:
        items = [(f"{place}.{name}", getattr(value, name, None)) for name in _attributes(value)]
    return [found for name, item in items for found in floating_tensors(item, name, depth - 1)]
