"""Pictures that scale: the plot of a view, or its text."""

from __future__ import annotations

from pathlib import Path

from layerstep.exports.parts import last_of
from layerstep.registry import export
from layerstep.render.svg import to_svg
from layerstep.views import Plot, View

__all__ = ["write_svg"]


@export(".svg")
def write_svg(view: View, path: Path) -> None:
    path.write_text(to_svg(last_of(view, Plot) or view), encoding="utf-8")
