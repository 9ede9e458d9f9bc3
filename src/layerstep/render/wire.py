"""Views over a wire, whole: `encode` makes plain data of a view, and `decode` makes the same view again."""

from __future__ import annotations

import functools
import math
import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from layerstep import views
from layerstep.errors import UserError
from layerstep.views import Figure, View

__all__ = ["decode", "encode"]

_CLASSES: dict[str, type] = {
    name: found
    for name in views.__all__
    if isinstance(found := getattr(views, name), type) and is_dataclass(found)
}


def encode(value: Any) -> Any:
    """A view, or a part of one, as data for JSON."""
    if is_dataclass(value):
        return {"is": type(value).__name__, **{f.name: encode(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Figure):
        return {"is": "Figure", "text": str(value), "value": encode(value.value), "unit": value.unit}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    return value


def decode(data: Any) -> View:
    """The view of which `encode` made this; a `UserError` if it did not."""
    try:
        found = _decode(data, None)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UserError("this is not a view of layerstep") from None
    if not isinstance(found, get_args(View)):
        raise UserError("this is not a view of layerstep")
    return found  # type: ignore[no-any-return]


def _decode(data: Any, hint: Any) -> Any:
    if isinstance(data, dict):
        if data["is"] == "Figure":
            return Figure(str(data["text"]), _decode(data["value"], float), str(data["unit"]))
        kind = _CLASSES[data["is"]]
        hints = _hints(kind)
        return kind(**{name: _decode(data[name], hints[name]) for name in hints})
    if isinstance(data, list):
        inner = _items(hint, len(data))
        return tuple(_decode(item, each) for item, each in zip(data, inner, strict=True))
    if isinstance(data, str) and _takes_float(hint):
        return float(data)
    if isinstance(data, int) and not isinstance(data, bool) and hint is float:
        return float(data)
    return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _items(hint: Any, count: int) -> list[Any]:
    """What each item of a tuple is to be."""
    if get_origin(hint) is not tuple:
        return [None] * count
    given = get_args(hint)
    return [given[0]] * count if len(given) == 2 and given[1] is ... else list(given)


def _takes_float(hint: Any) -> bool:
    """Is it a number, or None? Then a text stands for a NaN or an infinity."""
    if get_origin(hint) in (Union, types.UnionType):
        return float in get_args(hint)
    return hint is float and get_origin(hint) is not Literal
