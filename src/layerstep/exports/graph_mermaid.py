"""The graph that was shown last as Mermaid, for Markdown pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerstep.graph.mermaid import to_mermaid
from layerstep.graph.tracing import picture_to_export
from layerstep.registry import export

__all__ = ["write_mermaid"]


@export(".mmd", of_session=True)
def write_mermaid(session: Any, path: Path) -> None:
    text = to_mermaid(picture_to_export(session)[1])
    path.write_text(text, encoding="utf-8")
