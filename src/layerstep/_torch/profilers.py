"""torch's own profiler: a process can run one at a time. Seen on torch 2.13.0."""

from __future__ import annotations

import os

import torch

__all__ = ["QuietProfiler", "is_profiling"]


def is_profiling() -> bool:
    """Does torch.profiler record now? Fallback: no; starting a second one then raises."""
    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


class QuietProfiler:
    """torch.profiler with all activities that it can record here, and without the lines that Kineto prints.

    Kineto writes two lines to stderr at each start; levels up to 5 do not stop them. It reads its level once,
    when the first profiler of the process starts. We set the variable only for that start, and leave one that
    the user has set. Fallback: where the program has used torch.profiler before, the two lines are written.
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
