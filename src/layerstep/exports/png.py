"""A picture for slides and chats: plots drawn by matplotlib, the rest as text."""

from __future__ import annotations

from pathlib import Path

from layerstep.exports.figure import figures_of, saved
from layerstep.registry import export
from layerstep.views import View

__all__ = ["write_png"]


@export(".png", extra="plots")
def write_png(view: View, path: Path) -> None:
    (figure,) = figures_of(view)
    saved(figure, path, "png")
