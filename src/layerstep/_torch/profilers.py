"""torch's own profiler, of which a process has one. Seen on torch 2.13.0."""

from __future__ import annotations

import os

import torch

__all__ = ["QuietProfiler", "is_profiling"]


def is_profiling() -> bool:
    """Does somebody record with torch.profiler now? Fallback: no; starting a second one then raises."""
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


class QuietProfiler:
    """torch.profiler over everything that it can record here, without the lines that its library writes.

    Kineto writes two lines to stderr each time (levels up to 5 do not stop them). It reads its level once,
    when the first profiler of the process starts; the variable is there only meanwhile, and one that the user
    has set stays. Fallback: where the program has used torch.profiler before, the two lines are written.
    """

    def __init__(self) -> None:
        self.inner = torch.profiler.profile(activities=torch.profiler.supported_activities())

    def start(self) -> None:
        is_ours = _LEVEL not in os.environ
        if is_ours:
            os.environ[_LEVEL] = _SILENT
        try:
            self.inner.start()
        finally:
            if is_ours:
                os.environ.pop(_LEVEL, None)

    def stop(self) -> None:
        self.inner.stop()


_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "6"
