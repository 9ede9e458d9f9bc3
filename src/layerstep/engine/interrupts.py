"""Ctrl-C while the model runs: stop at the next module boundary; twice quickly, KeyboardInterrupt."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts", "wake_main_thread"]

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

    def forget(self) -> None:
        """A stop has come between: the next Ctrl-C is a first one."""
        self._last = float("-inf")

    def stop(self) -> None:
        if self.is_on and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) == self._handle:  # the program may have set its own since
                signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        twice = now - self._last < TWICE_WITHIN
        self._last = now
        if twice or not self._interrupted():
            self._last = float("-inf")
            raise KeyboardInterrupt


def wake_main_thread() -> bool:
    """Interrupt the main thread and say so, if this is another one: it may wait for what will not come.

    By a real signal where there are such: `interrupt_main` does not end a wait for a lock.
    """
    main = threading.main_thread()
    if threading.current_thread() is main or main.ident is None:
        return False
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main.ident, signal.SIGINT)
    else:
        _thread.interrupt_main()
    return True
