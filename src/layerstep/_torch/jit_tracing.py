"""Function modes of ours are off while torch.jit.trace records: seen on torch 2.13.0.

A trace keeps, for each operation, the line that called it and the names of that frame's variables. Under a
function mode that frame is the mode's handler. A dispatch mode lies below the recording and changes nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from layerstep._torch.modes import lay_below, take_out

__all__ = ["off_in_traces", "on_in_traces"]

_ENTRIES = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
    (torch.jit, "trace_module"),
    (torch.jit, "_get_trace_graph"),
)
"""Where recording begins. Fallback: a trace tells the handler's line where torch has renamed one."""
_modes: list[TorchFunctionMode] = []
_patched: list[tuple[Any, str, Any, Any]] = []
_lock = threading.Lock()


def off_in_traces(mode: TorchFunctionMode) -> None:
    """From now on this mode leaves the stack while a trace is recorded."""
    with _lock:
        _modes.append(mode)
        for home, name in _ENTRIES if not _patched else ():
            if (entry := getattr(home, name, None)) is not None:
                ours = _without_modes(entry)
                _patched.append((home, name, entry, ours))
                setattr(home, name, ours)


def on_in_traces(mode: TorchFunctionMode) -> None:
    """The mode has gone. After the last one torch's functions are torch's again."""
    with _lock:
        if mode in _modes:
            _modes.remove(mode)
        while _patched and not _modes:
            home, name, entry, ours = _patched.pop()
            if getattr(home, name, None) is ours:  # else the program has put its own there meanwhile
                setattr(home, name, entry)


def _without_modes(entry: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(entry)
    def record(*args: Any, **kwargs: Any) -> Any:
        out = [mode for mode in list(_modes) if take_out(mode)]
        try:
            return entry(*args, **kwargs)
        finally:
            for mode in out:
                lay_below(mode)

    return record
