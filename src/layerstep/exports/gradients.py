"""The recorded gradients as a page with a slider: a bar for each layer, step by step."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from layerstep.exports.gradient_frames import gradient_frames
from layerstep.registry import export

__all__ = ["write_gradients_page"]


@export(".gradients.html", of_session=True)
def write_gradients_page(session: Any, path: Path) -> str:
    frames = gradient_frames(session)
    rows = [[None if math.isnan(norm) else _number(norm) for norm in row] for row in frames.norms]
    data = {"steps": frames.steps, "layers": frames.layers, "norms": rows, "bounds": frames.bounds}
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    template = files("layerstep.exports").joinpath("gradients.html").read_text(encoding="utf-8")
    path.write_text(template.replace("{{data}}", body), encoding="utf-8")
    return f"{len(frames.steps)} steps of {len(frames.layers)} layers"


def _number(norm: float) -> float | str:
    """JSON has no infinity."""
    return float(f"{norm:.4g}") if math.isfinite(norm) else "inf"
