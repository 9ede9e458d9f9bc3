"""The doctor's own time, measured at each piece of its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["OwnTime", "Piece"]


class OwnTime:
    """Adds up what the doctor takes of the step that runs."""

    __slots__ = ("failed", "seconds")

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.failed = failed
        self.seconds = 0.0

    def take(self) -> float:
        """The seconds since they were taken last."""
        taken, self.seconds = self.seconds, 0.0
        return taken


class Piece:
    """Takes the time of one piece of work. A bug in it detaches and lets the run go on."""

    __slots__ = ("_begun", "_own")

    def __init__(self, own: OwnTime) -> None:
        self._own = own
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._own.seconds += time.perf_counter() - self._begun
        if isinstance(error, Exception):
            self._own.failed(error)
            return True
        return False
