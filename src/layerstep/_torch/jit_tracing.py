"""Our function modes are off while `torch.jit.trace` records. Seen on torch 2.13.0.

A trace keeps, for each operation, the line that called it and the names of that frame's variables. Under a
function mode that frame would be the mode's handler. A dispatch mode runs below the recording and changes
nothing in it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from layerstep._torch.modes import pop_mode, push_below

__all__ = ["off_in_traces", "on_in_traces"]

_ENTRIES = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
    (torch.jit, "trace_module"),
    (torch.jit, "_get_trace_graph"),
)
"""Where recording begins. Fallback: where torch has renamed one, a trace names the handler's line."""
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
    """Forget the mode. After the last one torch gets its own functions back."""
    with _lock:
        if mode in _modes:
            _modes.remove(mode)
        while _patched and not _modes:
            home, name, entry, ours = _patched.pop()
            if getattr(home, name, None) is ours:  # else the program has put its own there
                setattr(home, name, entry)


def _without_modes(entry: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(entry)
    def record(*args: Any, **kwargs: Any) -> Any:
        popped = [mode for mode in list(_modes) if pop_mode(mode)]
        try:
            return entry(*args, **kwargs)
        finally:
            for mode in popped:
                push_below(mode)

    return record
