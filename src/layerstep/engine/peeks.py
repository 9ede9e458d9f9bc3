"""Lines that are answered while the run goes on: by its own thread, between two steps or two forwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from layerstep.engine.resume import Resume
from layerstep.engine.run import Run
from layerstep.errors import UserError
from layerstep.views import Notice, View

__all__ = ["Peeks"]


class Peeks:
    """Keeps each line until the program's own thread is between two steps; that thread answers, and goes on.

    Another thread must not read tensors that are being written. Nothing is installed while no line waits.
    """

    def __init__(self, run: Run, answer: Callable[..., tuple[View | None, Resume | None]]) -> None:
        self._run = run
        self._answer = answer
        self._waiting: deque[tuple[str, str, Future[View | None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, line: str, *, origin: str = "") -> Future[View | None]:
        """Hand in a line, from any thread."""
        future: Future[View | None] = Future()
        self._waiting.append((line, origin, future))
        self._run.training.call_at(self._run.training.total + 1, self.serve)
        return future

    def serve(self) -> None:
        """Answer what waits, in the thread of the program."""
        while (next_one := self._next()) is not None:
            line, origin, future = next_one
            if not future.set_running_or_notify_cancel():
                continue
            view: View | None = None
            try:
                view, resume = self._answer(line, origin=origin)
                if resume is not None:
                    view = Notice("nothing is paused", f"{line!r} has nothing to resume", level="error")
            finally:
                future.set_result(view)

    def refuse(self, reason: str) -> None:
        """Refuse all lines that wait: the program will not answer them."""
        while (next_one := self._next()) is not None:
            if next_one[2].set_running_or_notify_cancel():
                next_one[2].set_exception(UserError(reason))

    def _next(self) -> tuple[str, str, Future[Any]] | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None
