"""A view whose text a terminal can only show: control characters are spelled out, names stay on one line."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from layerstep.views import Node, Plot, Span, StackFrame, Text, View
from layerstep.visible import one_line, visible

__all__ = ["spelled_out"]

V = TypeVar("V", bound=View)

_NAMES: dict[type, frozenset[str]] = {
    Span: frozenset({"text"}),
    Node: frozenset({"label", "kind", "mark"}),
    StackFrame: frozenset({"path", "kind", "state", "location", "code"}),
    Plot: frozenset({"names", "labels"}),
}
"""The fields that hold names: a line break in one would begin a line of its own."""


def spelled_out(view: V) -> V:
    """The same view with nothing in it that a terminal obeys."""
    made: V = _spelled(view, names=False)
    return made


def _spelled(value: Any, *, names: bool) -> Any:
    if isinstance(value, str):
        return one_line(value) if names else visible(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], float | int):
            return value  # the numbers of a plot: there may be a million
        return tuple(_spelled(item, names=names) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    if isinstance(value, Text) and value.is_printed:
        return value
    of_names = _NAMES.get(type(value), frozenset())
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    new = {name: _spelled(old, names=name in of_names) for name, old in fields.items()}
    changed = {name: item for name, item in new.items() if item != fields[name]}
    return dataclasses.replace(value, **changed) if changed else value
