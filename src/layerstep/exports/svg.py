"""Pictures that scale: its plots as pictures, the rest as text."""

from __future__ import annotations

from pathlib import Path

from layerstep.registry import export
from layerstep.render.svg import to_svg
from layerstep.views import View

__all__ = ["write_svg"]


@export(".svg")
def write_svg(view: View, path: Path) -> None:
    path.write_text(to_svg(view), encoding="utf-8")
