"""The file: safetensors, with one JSON in its metadata. No pickle is written or read.

We write it segment by segment, so that at most one of them is copied at a time. The safetensors library reads
it and checks every offset.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerstep.corefile.tensors import Segment
from layerstep.errors import RecordingError, UserError, first_line
from layerstep.files import replacing

__all__ = ["FORMAT", "SUFFIX", "VERSION", "read_file", "write_file"]

FORMAT, VERSION, SUFFIX = "layerstep-core", 1, ".lscore"

MOST_HEADER = 90_000_000
"""The safetensors library reads no header above 100 MB."""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes that every version of the format has; others are written as bytes."""


def write_file(path: Path, contents: dict[str, Any], segments: Sequence[Segment]) -> int:
    """Write the file, whole or not at all, and return its size in bytes. A full disk is a `UserError`."""
    header = _header(contents, segments)
    if len(header) > MOST_HEADER:
        raise UserError(f"cannot write {path}", "the model has more modules than such a file can describe")
    with replacing(path) as new:
        with new.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for segment in segments:
                file.write(segment.read())
        return new.stat().st_size


def _header(contents: dict[str, Any], segments: Sequence[Segment]) -> bytes:
    metadata = {"format": FORMAT, "version": str(VERSION), "core": json.dumps(contents, allow_nan=False)}
    table: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for segment in segments:
        known = segment.dtype in _DTYPES
        table[segment.name] = {
            "dtype": _DTYPES[segment.dtype] if known else "U8",
            "shape": list(segment.shape) if known else [segment.nbytes],
            "data_offsets": [at, at + segment.nbytes],
        }
        at += segment.nbytes
    text = json.dumps(table).encode()
    return text + b" " * (-len(text) % 8)


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The contents, and the segments as flat tensors of bytes; a `RecordingError` in one line."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise RecordingError(f"cannot read {path}; {error.strerror}") from None
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            contents = _contents(path, opened.metadata() or {})
            names = list(opened.keys())
            segments = {name: _bytes(opened.get_tensor(name)) for name in names}
    except SafetensorError as error:
        reason = first_line(error)[:120]
        raise RecordingError(f"{path} is not a core file, or not a complete one; {reason}") from None
    return contents, segments


def _bytes(tensor: Tensor) -> Tensor:
    """Copy it to own memory, because the file may be replaced while the session uses it."""
    return tensor.reshape(-1).view(torch.uint8).clone()


def _contents(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise RecordingError(f"{path} is not a core file; `dump FILE` at a stop writes one")
    version = metadata.get("version", "")
    if version != str(VERSION):
        raise RecordingError(
            f"{path} is a core file of version {version[:20] or 'none'}, and this layerstep reads {VERSION}"
        )
    try:
        contents = json.loads(metadata.get("core", ""))
    except (ValueError, RecursionError):
        contents = None
    if not isinstance(contents, dict):
        raise RecordingError(f"{path} is damaged; its description cannot be read")
    return contents
