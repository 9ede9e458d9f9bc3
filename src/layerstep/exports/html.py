"""A page of what the screen shows, in one file."""

from __future__ import annotations

from pathlib import Path

from layerstep.registry import export
from layerstep.render.html import to_page
from layerstep.views import View

__all__ = ["write_html"]


@export(".html")
def write_html(view: View, path: Path) -> None:
    path.write_text(to_page(view, title=path.stem), encoding="utf-8")
