"""The environment of a run: modes of torch, versions, the machine; and an exception as text."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from layerstep.corefile.values import without_home
from layerstep.errors import message_of

__all__ = ["environment", "exception_text", "modes_now", "under_modes"]

MOST_TEXT = 20_000
_DEVICES = ("cpu", "cuda")


def modes_now() -> dict[str, Any]:
    """The modes of this thread and of torch that a result depends on."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": {
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in _DEVICES
            if torch.is_autocast_enabled(device)
        },
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


@contextlib.contextmanager
def under_modes(modes: dict[str, Any]) -> Iterator[None]:
    """Put these modes on for a block."""
    before = modes_now()
    with contextlib.ExitStack() as stack:
        stack.callback(_set_process_wide, before)
        _set_process_wide(modes)
        if modes["inference"]:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(bool(modes["grad"])))
        for device, dtype in modes["autocast"].items():
            stack.enter_context(
                torch.autocast(
                    device, dtype=getattr(torch, dtype), cache_enabled=bool(modes["autocast_cache"])
                )
            )
        yield


def _set_process_wide(modes: dict[str, Any]) -> None:
    torch.set_default_dtype(getattr(torch, modes["default_dtype"]))
    torch.set_num_threads(max(1, min(int(modes["threads"]), 1024)))
    torch.use_deterministic_algorithms(
        bool(modes["deterministic"]), warn_only=bool(modes["deterministic_warn_only"])
    )
    torch.set_float32_matmul_precision(modes["matmul_precision"])


def environment() -> dict[str, Any]:
    """Versions and the machine; no name of a user, no variable, no path."""
    return {
        "layerstep": sys.modules["layerstep"].__version__,  # an import would load the front ends
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count() or 0,
        "devices": _devices(),
    }


def _devices() -> list[str]:
    if not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def exception_text(error: BaseException) -> dict[str, Any]:
    """Type, message, notes and traceback; files by their base names."""
    trace = traceback.TracebackException(type(error), error, error.__traceback__)
    waiting: list[traceback.TracebackException | None] = [trace]
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        for frame in one.stack:
            _ = frame.line  # read it now, while the frame has its full file name
            frame.filename = os.path.basename(frame.filename)
        waiting += [one.__cause__, one.__context__]
    return {
        "type": type(error).__name__,
        "message": without_home(message_of(error))[:MOST_TEXT],
        "notes": [without_home(str(note))[:MOST_TEXT] for note in getattr(error, "__notes__", [])],
        "traceback": without_home("".join(trace.format()))[-MOST_TEXT:],
    }
