"""The graph that was shown last as SVG, by Graphviz if it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerstep.graph.svg import to_svg
from layerstep.graph.tracing import picture_to_export
from layerstep.registry import export

__all__ = ["write_graph_svg"]


@export(".graph.svg", of_session=True)
def write_graph_svg(session: Any, path: Path) -> None:
    text = to_svg(picture_to_export(session)[1])
    path.write_text(text, encoding="utf-8")
