"""The data of a view, as front ends get it."""

from __future__ import annotations

from pathlib import Path

from layerstep.registry import export
from layerstep.render.json import to_line
from layerstep.views import View

__all__ = ["write_json"]


@export(".json")
def write_json(view: View, path: Path) -> None:
    path.write_text(to_line(view, kind="export") + "\n", encoding="utf-8")
