"""A view as JSON: data with a version, the field names of `layerstep.views`, and nothing about layout."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from layerstep.views import Column, Figure, Table, Text, View
from layerstep.visible import escaped_json

__all__ = ["LAYOUT", "VERSION", "to_json", "to_line"]

VERSION = 2
"""Raised when a field changes its meaning or goes away."""

LAYOUT = {Column: ("role", "right"), Text: ("is_printed",)}
"""What only a screen wants to know."""

_NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e-?\d+)?")


def to_json(view: View) -> dict[str, Any]:
    """A view as plain data."""
    return _plain(view)  # type: ignore[no-any-return]


def to_line(view: View, *, kind: str, line: str = "", stop: Mapping[str, Any] | None = None) -> str:
    """A message as one line of JSON; `stop`: where the run stands, as data."""
    where = {"stop": _plain(dict(stop))} if stop is not None else {}
    document = {"layerstep": VERSION, "kind": kind, "line": line, **where, "view": to_json(view)}
    return escaped_json(json.dumps(document, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return _table(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.name not in LAYOUT.get(type(value), ())]
        found = {name: _plain(getattr(value, name)) for name in fields}
        if isinstance(value, Text) and isinstance(value.text, Figure):
            found |= {"value": _plain(value.text.value), "unit": value.text.unit}
        return {"view": type(value).__name__.lower(), **found}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    return value


def _table(table: Table) -> dict[str, Any]:
    """Each column says whether it holds numbers, and of what unit; cells that show none are null or text."""
    rows = [
        [_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows
    ]
    columns = [
        {
            "name": column.name,
            "type": "number" if any(type(row[i]) in (int, float) for row in rows) else "text",
            "unit": next((cell.unit for row in table.rows if isinstance(cell := row[i], Figure)), ""),
        }
        for i, column in enumerate(table.columns)
    ]
    return {"view": "table", "columns": columns, "rows": rows, "title": table.title, "note": table.note}


def _cell(column: Column, cell: str) -> Any:
    if isinstance(cell, Figure):
        return _plain(cell.value)
    if not column.right:
        return cell
    if cell in ("", "-"):
        return None
    if _NUMBER.fullmatch(cell) is None:
        return cell
    text = cell.replace(",", "")
    return float(text) if set(text) & set(".e") else int(text)
