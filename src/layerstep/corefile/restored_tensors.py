"""Tensors from a core file. Checks every entry before it reads memory by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from layerstep.errors import RecordingError

__all__ = ["RestoredTensors"]

Entry = Mapping[str, Any]


class RestoredTensors:
    """The tensors of a file by their numbers, each made once, at its first use.

    `segments` are flat and of bytes. With `copied` their memory is copied first: what runs on these tensors
    may write to them.
    """

    def __init__(
        self, entries: Sequence[Entry], segments: Mapping[str, Tensor], *, copied: bool = False
    ) -> None:
        self._entries = entries
        self._segments = {name: raw.clone() for name, raw in segments.items()} if copied else segments
        self._copied = copied
        self._made: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def is_absent(self, number: int) -> bool:
        """Is only its shape in the file?"""
        entry = self._entries[number]
        parts = entry.get("parts", {}).values()
        return entry["kind"] in ("absent", "lazy") or any(self.is_absent(part) for part in parts)

    def get(self, number: int) -> Tensor:
        if not isinstance(number, int) or not 0 <= number < len(self._entries):
            raise RecordingError(f"there is no tensor {number} in it")
        if number not in self._made:
            entry = self._entries[number]
            made = self._made[number] = self._flagged(self._make(entry), entry)
            made.core_device = str(entry.get("device", "cpu"))  # type: ignore[attr-defined]
            if entry["kind"] == "absent":
                made.not_in_core = True  # type: ignore[attr-defined]
        return self._made[number]

    def _flagged(self, tensor: Tensor, entry: Entry) -> Tensor:
        if self._copied:
            return _as_in_run(tensor, entry)
        may = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        wants = bool(entry.get("requires_grad")) and may
        if entry.get("parameter") and entry["kind"] != "lazy":
            return nn.Parameter(tensor, requires_grad=wants)
        return tensor.requires_grad_() if wants and entry["kind"] != "lazy" else tensor

    def _make(self, entry: Entry) -> Tensor:
        kind = entry["kind"]
        if kind == "lazy":
            return nn.UninitializedParameter()
        if kind in ("absent", "meta"):
            shape = entry["shape"]
            if "stride" in entry:
                return torch.empty_strided(shape, entry["stride"], dtype=_dtype(entry), device="meta")
            return torch.empty(shape, dtype=_dtype(entry), device="meta")
        if kind == "dense":
            return self._dense(entry)
        parts = {name: self.get(number).detach() for name, number in entry["parts"].items()}
        if kind not in _OF_PARTS:
            raise RecordingError(f"it holds a tensor of an unknown kind: {kind!r}")
        return _OF_PARTS[kind](entry, parts)

    def _dense(self, entry: Entry) -> Tensor:
        dtype, shape, strides, at = _dtype(entry), entry["shape"], entry["stride"], entry["at"]
        if not all(isinstance(number, int) and number >= 0 for number in (*shape, *strides, at)):
            raise RecordingError("it holds a tensor of an impossible shape")
        if len(shape) != len(strides):
            raise RecordingError("it holds a tensor of an impossible shape")
        if 0 in shape:
            return torch.empty_strided(shape, strides, dtype=dtype)
        raw = self._segments.get(entry["segment"])
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        end = at + (last + 1) * dtype.itemsize
        if raw is None or at % dtype.itemsize or end > raw.numel():
            raise RecordingError("it holds a tensor without its memory")
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(raw.untyped_storage(), at // dtype.itemsize, shape, strides)
        return tensor.data  # its version must be 0: the run has not written to it


def _as_in_run(tensor: Tensor, entry: Entry) -> Tensor:
    """Put it on its device, if that is here, and into a graph, if it was in one: leaves refuse writes."""
    device = torch.device(str(entry.get("device", "cpu")))
    if device.type == "cuda" and torch.cuda.device_count() > (device.index or 0):
        tensor = tensor.to(device)
    if entry.get("inference"):
        with torch.inference_mode():
            return tensor.clone()
    may = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if not (entry.get("requires_grad") and may):
        return tensor
    with torch.enable_grad():
        tensor = tensor.requires_grad_()
        return tensor.clone() if entry.get("made") else tensor


def _dtype(entry: Entry) -> torch.dtype:
    dtype = getattr(torch, str(entry["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise RecordingError(f"this torch has no {entry['dtype']!r}")
    return dtype


def _sparse(entry: Entry, parts: dict[str, Tensor]) -> Tensor:
    shape = entry["shape"]
    if entry["layout"] == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"],
            parts["values"],
            shape,
            check_invariants=True,
            is_coalesced=True if entry["coalesced"] else None,
        )
    return torch.sparse_compressed_tensor(
        parts["compressed"],
        parts["plain"],
        parts["values"],
        shape,
        layout=getattr(torch, entry["layout"]),
        check_invariants=True,
    )


def _quantized(entry: Entry, parts: dict[str, Tensor]) -> Tensor:
    """Make zeros of that scheme, then write the integers to their memory: torch has no public way."""
    integers, dtype = parts["integers"], _dtype(entry)
    zeros = torch.zeros(integers.shape)
    if "axis" in entry:
        scales, offsets = parts["scales"].double(), parts["zeros"].long()
        made = torch.quantize_per_channel(zeros, scales, offsets, entry["axis"], dtype)
    else:
        made = torch.quantize_per_tensor(zeros, entry["scale"], entry["zero"], dtype)
    raw = torch.empty(0, dtype=integers.dtype)
    raw.set_(made.untyped_storage(), 0, made.size(), made.stride())
    raw.copy_(integers)
    return made


def _nested(entry: Entry, parts: dict[str, Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts.values()))


def _jagged(entry: Entry, parts: dict[str, Tensor]) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(
        parts["values"], parts["offsets"], parts.get("lengths"), jagged_dim=entry["dim"]
    )


_OF_PARTS: dict[str, Callable[[Entry, dict[str, Tensor]], Tensor]] = {
    "sparse": _sparse,
    "quantized": _quantized,
    "nested": _nested,
    "jagged": _jagged,
}
