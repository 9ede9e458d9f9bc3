"""The pace of the machine: a small fixed piece of work, timed now and then beside the steps.

On a machine that others use the same step takes 1.0 or 1.5 times as long from one minute to the next; so does
this work, and comparisons divide by it.
"""

from __future__ import annotations

import time

import torch

from layerstep.engine.guard import observing

__all__ = ["Pace", "waited"]

EVERY = 0.1
"""Seconds between two measurements at least; one takes about half a millisecond."""
SIDE = 128


def waited() -> float:
    """Seconds that this thread was ready and had no processor, since it began: others had it.

    Linux tells it by thread; elsewhere it is 0, and steps on a busy machine look slower than they are.
    """
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Pace:
    """Answers with the seconds that the fixed work took last."""

    def __init__(self) -> None:
        self._left: torch.Tensor | None = None
        self._out: torch.Tensor | None = None
        self._last = 0.0
        self._found = 0.0

    def now(self) -> float:
        if time.monotonic() - self._last < EVERY:
            return self._found
        with observing():
            if self._left is None or self._out is None:
                self._left = torch.full((SIDE, SIDE), 0.5)
                self._out = torch.empty_like(self._left)
                self._work(self._left, self._out)
            self._found = min(self._work(self._left, self._out) for _ in range(3))
        self._last = time.monotonic()
        return self._found

    def _work(self, left: torch.Tensor, out: torch.Tensor) -> float:
        begin = time.thread_time()  # others may run meanwhile: that is not its pace
        for _ in range(3):
            torch.mm(left, left, out=out)
            torch.add(left, 1.0, out=out)
        total = 0
        for each in range(1500):
            total += each
        return time.thread_time() - begin
