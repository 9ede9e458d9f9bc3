"""The machine that a run is timed on: its clock and its cores. Tests replace both."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

__all__ = ["clock", "cores", "now", "replaced"]

_clock: Callable[[], int] = time.perf_counter_ns
_cores: int | None = None


def clock() -> Callable[[], int]:
    """The function that tells the time in nanoseconds, for callers that need it twice a module call."""
    return _clock


def now() -> float:
    """Seconds on that clock."""
    return _clock() / 1e9


def cores() -> int:
    """The cores that this process may use."""
    if _cores is not None:
        return _cores
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def replaced(clock: Callable[[], int], *, cores: int) -> Iterator[None]:
    """Use another clock and number of cores."""
    global _clock, _cores
    before = _clock, _cores
    _clock, _cores = clock, cores
    try:
        yield
    finally:
        _clock, _cores = before
