"""A queue and a thread between the run and a tracker: the run never waits for it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from layerstep.errors import first_line
from layerstep.sinks.sink import Sink

__all__ = ["Outbox"]

ROOM = 4096
"""Calls that may wait. When a tracker is slower than the run, the newest are dropped and counted."""
IDLE = 1.0
"""Seconds without a call after which the sink sends what it keeps back."""
FAILURES = 3
"""After so many failures in a row the tracker is given up."""
PATIENCE, LONGEST = 10.0, 60.0
"""At the end: seconds to wait for a tracker that does nothing, and in all."""

Work = Callable[[Sink], None]


class Outbox:
    """Hands calls to one sink, in a thread of its own. It holds at most `ROOM` of them."""

    def __init__(self, name: str, sink: Sink, *, room: int = ROOM) -> None:
        self.name = name
        self.sent = self.dropped = 0
        """Records that the sink has taken, and that found no room."""
        self._trouble = ""
        self._told = False
        self._given_up = False
        self._failures = 0
        self._sink = sink
        self._process = os.getpid()
        self._waiting: queue.Queue[Work | None] = queue.Queue(room)
        self._thread = threading.Thread(target=self._work, name=f"layerstep {name}", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Is this the process that made it? A fork has none of our threads."""
        return os.getpid() == self._process

    def put(self, work: Work) -> None:
        """Hand in a call. It never waits and never raises."""
        if self._given_up or not self.is_here:
            self.dropped += 1
            return
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self.dropped += 1

    def take_trouble(self) -> str:
        """What went wrong, once."""
        if self._told or not self._trouble:
            return ""
        self._told = True
        return self._trouble

    def close(self, *, patience: float = PATIENCE, longest: float = LONGEST) -> str:
        """Send what waits, as long as the tracker takes it; what there is to say about it."""
        if not self.is_here:
            return ""
        end = time.monotonic() + longest
        try:
            self._waiting.put(None, timeout=patience)
        except queue.Full:
            self._given_up = True
        while self._thread.is_alive() and not self._given_up:
            before = self.sent
            self._thread.join(max(0.0, min(patience, end - time.monotonic())))
            if self._thread.is_alive() and (self.sent == before or time.monotonic() >= end):
                self._given_up = True
        lost = self.dropped + self._waiting.qsize()
        if self._given_up and not self._trouble:
            self._trouble = f"{self.name} does not answer"
        trouble = self.take_trouble()
        if lost and self.sent:
            return f"{trouble or f'{self.name} was slower than the run'}: {lost:,} records are lost"
        return trouble

    # --- in the thread of the sink ---

    def _work(self) -> None:
        self._given_up = not self._do(lambda sink: sink.open())
        while not self._given_up and (work := self._next()) is not None:
            if self._do(work):
                self.sent += 1
        if not self._given_up:
            self._do(lambda sink: sink.flush())
            self._do(lambda sink: sink.close())

    def _next(self) -> Work | None:
        try:
            return self._waiting.get(timeout=IDLE)
        except queue.Empty:
            self._do(lambda sink: sink.flush())
            return self._waiting.get()

    def _do(self, work: Work) -> bool:
        try:
            work(self._sink)
        except Exception as error:  # a tracker may raise anything
            self._failures += 1
            self._trouble = self._trouble or f"{self.name}: {type(error).__name__}: {first_line(error)}"[:200]
            self._given_up = self._given_up or self._failures >= FAILURES
            return False
        self._failures = 0
        return True
