"""The whole graph of a forward as JSON: every module call, every operation, every edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerstep.graph.tracing import picture_to_export
from layerstep.registry import export

__all__ = ["write_graph_json"]


@export(".graph.json", of_session=True)
def write_graph_json(session: Any, path: Path) -> None:
    text = picture_to_export(session)[0].to_json()
    path.write_text(text + "\n", encoding="utf-8")
