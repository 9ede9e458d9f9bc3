"""Devices and their memory: what can be found out about each, and what cannot.

psutil tells about the processor; `torch.accelerator` about accelerators, or the functions of the device's own
module where it does not use torch's allocator; on CUDA also NVML, if its package is installed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
import torch

__all__ = ["Device", "accelerators", "devices", "processor"]


@dataclass(frozen=True, slots=True)
class Device:
    """What is known about a device; None is unknown."""

    name: str
    used: int | None = None
    """Memory of this process: resident on the processor, allocated by tensors on an accelerator."""
    peak: int | None = None
    reserved: int | None = None
    """What the allocator of an accelerator has reserved, in use or not."""
    peak_reserved: int | None = None
    free: int | None = None
    total: int | None = None
    utilisation: float | None = None
    """From 0 to 1."""
    allocator: dict[str, int] = field(default_factory=dict)
    """Counts of the allocator: retries, out of memory, bytes in split blocks that cannot be given back."""
    unknown: tuple[str, ...] = ()
    """What could not be found out, with the reason."""

    @property
    def fragmentation(self) -> float | None:
        """The share of what was reserved that no tensor used at the peak; None where nothing is reserved."""
        used = self.peak if self.peak_reserved else self.used
        reserved = self.peak_reserved or self.reserved
        return max(0.0, 1 - used / reserved) if reserved and used is not None else None


def devices() -> list[Device]:
    """The processor, then each accelerator that is there."""
    return [processor(), *accelerators()]


def processor() -> Device:
    """This process in the memory of the machine."""
    process, machine = psutil.Process(), psutil.virtual_memory()
    memory = process.memory_info()
    peak, unknown = _peak_of_process(memory)
    return Device(
        "cpu",
        used=int(memory.rss),
        peak=peak,
        free=int(machine.available),
        total=int(machine.total),
        unknown=unknown,
    )


def _peak_of_process(memory: Any) -> tuple[int | None, tuple[str, ...]]:
    peak = getattr(memory, "peak_wset", None)  # Windows
    if peak is not None:
        return int(peak), ()
    try:
        import resource
    except ImportError:
        return None, ("the peak of the process: this platform does not tell",)
    most = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return max(most * (1 if sys.platform == "darwin" else 1024), int(memory.rss)), ()


def accelerators() -> list[Device]:
    """Every accelerator that torch can use here."""
    kind = _kind()
    if kind is None:
        return []
    count = _ask(torch.accelerator.device_count) or 0
    return [_accelerator(kind, index) for index in range(int(count))]


def _kind() -> str | None:
    """The type of accelerator that is in use: "cuda", "mps", "xpu", …"""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    current = accelerator.current_accelerator()
    return current.type if current is not None else None


_FIGURES = {
    "used": ("memory_allocated", "allocated_bytes.all.current"),
    "peak": ("max_memory_allocated", "allocated_bytes.all.peak"),
    "reserved": ("memory_reserved", "reserved_bytes.all.current"),
    "peak_reserved": ("max_memory_reserved", "reserved_bytes.all.peak"),
}
_COUNTS = {
    "retries": "num_alloc_retries",
    "out of memory": "num_ooms",
    "bytes in split blocks": "inactive_split_bytes.all.current",
    "segments": "segment.all.current",
}


def _accelerator(kind: str, index: int) -> Device:
    own = torch.get_device_module(kind)
    stats = _first(
        index, getattr(torch.accelerator, "memory_stats", None), getattr(own, "memory_stats", None)
    )
    stats = stats if isinstance(stats, dict) else {}
    figures: dict[str, int | None] = {}
    unknown = []
    for name, (function, key) in _FIGURES.items():
        value = stats.get(key)
        if value is None:
            value = _first(index, getattr(own, function, None))
        figures[name] = int(value) if value is not None else None
        if value is None:
            unknown.append(f"{name.replace('_', ' ')}: {kind} does not tell")
    info = _first(
        index, getattr(torch.accelerator, "get_memory_info", None), getattr(own, "mem_get_info", None)
    )
    free, total = (int(info[0]), int(info[1])) if isinstance(info, tuple) and len(info) == 2 else (None, None)
    if total is None:
        unknown.append(f"free and total: {kind} does not tell")
    busy, why = _utilisation(kind, index)
    return Device(
        f"{kind}:{index}",
        free=free,
        total=total,
        utilisation=busy,
        allocator={word: int(stats[key]) for word, key in _COUNTS.items() if key in stats},
        unknown=(*unknown, why) if why else tuple(unknown),
        **figures,
    )


def _utilisation(kind: str, index: int) -> tuple[float | None, str]:
    """How busy it is, and why that is unknown."""
    if kind != "cuda":
        return None, f"utilisation: {kind} does not tell"
    try:
        import pynvml
    except ImportError:
        return None, "utilisation: needs NVML (pip install nvidia-ml-py)"
    try:
        pynvml.nvmlInit()
        return torch.cuda.utilization(index) / 100, ""  # it asks NVML, and knows CUDA_VISIBLE_DEVICES
    except Exception:
        return None, "utilisation: NVML does not answer"


def _first(index: int, *functions: Callable[..., Any] | None) -> Any:
    """The first answer of functions that take the number of a device."""
    for function in functions:
        if function is not None:
            answer = _ask(partial(function, index))
            if answer is not None:
                return answer
    return None


def _ask(question: Callable[[], Any]) -> Any:
    """None where a device has no such function, or it fails: some raise assertions out of C++."""
    with contextlib.suppress(Exception):
        return question()
    return None
