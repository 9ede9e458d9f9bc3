"""The model of this stop as ONNX, for Netron."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerstep.graph.onnx_model import write_onnx_file
from layerstep.graph.tracing import outermost_call
from layerstep.registry import export

__all__ = ["write_onnx"]


@export(".onnx", extra="onnx", of_session=True)
def write_onnx(session: Any, path: Path) -> str:
    module, args, kwargs = outermost_call(session)
    return write_onnx_file(session, module, (args, kwargs), path)
