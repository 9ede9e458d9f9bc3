"""A view as JSON: one object, with a version, the same field names as in `layerstep.views`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from layerstep.views import View
from layerstep.visible import escaped_json

__all__ = ["VERSION", "to_json", "to_line"]

VERSION = 1
"""Raised when a field changes its meaning or goes away."""


def to_json(view: View) -> dict[str, Any]:
    """A view as plain data."""
    return _plain(view)  # type: ignore[no-any-return]


def to_line(view: View, *, kind: str, line: str = "") -> str:
    """A message as one line of JSON."""
    document = {"layerstep": VERSION, "kind": kind, "line": line, "view": to_json(view)}
    return escaped_json(json.dumps(document, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"view": type(value).__name__.lower(), **fields}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    return value
