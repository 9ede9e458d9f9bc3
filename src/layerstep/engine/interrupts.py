"""Ctrl-C while the model runs: stop at the next module boundary; twice quickly, KeyboardInterrupt."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

TWICE_WITHIN = 2.0
"""Seconds in which a second Ctrl-C means it."""


class Interrupts:
    """Our SIGINT handler, only in the main thread and only while somebody can be asked."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._before: Any = None
        self._last = float("-inf")

    @property
    def is_on(self) -> bool:
        return self._before is not None

    def start(self) -> None:
        if self.is_on or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
        signal.signal(signal.SIGINT, self._handle)

    def stop(self) -> None:
        if self.is_on and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        twice = now - self._last < TWICE_WITHIN
        self._last = now
        if twice or not self._interrupted():
            self._last = float("-inf")
            raise KeyboardInterrupt
