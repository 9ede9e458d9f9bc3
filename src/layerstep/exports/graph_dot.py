"""The graph that was shown last as DOT, for Graphviz and what reads its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerstep.graph.dot import to_dot
from layerstep.graph.tracing import picture_to_export
from layerstep.registry import export

__all__ = ["write_dot"]


@export(".dot", of_session=True)
def write_dot(session: Any, path: Path) -> None:
    text = to_dot(picture_to_export(session)[1])
    path.write_text(text, encoding="utf-8")
