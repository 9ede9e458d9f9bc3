"""A pause: where the run stands still, and the inbox that its thread serves meanwhile.

The paused thread is the only one that evaluates, touches tensors or resumes, so grad mode, autocast,
streams and modes are right by construction. Front ends only post lines, from any thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.engine.point import Point, PointKind
from layerstep.engine.resume import Resume
from layerstep.engine.stop import Nothing, Shown, Stop
from layerstep.errors import UserError
from layerstep.expressions.scope import Scope
from layerstep.process.frames import forget_locals
from layerstep.views import Fields, Group, Notice, Span, View

__all__ = ["Inbox", "Line", "Pause", "describe"]

POLL_SECONDS = 0.2
"""A blocking get without a timeout would keep Python's signal handlers from running on Windows."""


@dataclass(slots=True, eq=False)
class Pause:
    """The run at a standstill."""

    scope: Scope
    stop: Stop
    selected: int = 0
    thread: int = field(default_factory=threading.get_ident)
    thread_name: str = ""
    """Its name, where the program has several threads."""
    is_start: bool = False
    """Before the run: no event, no stack; lines are taken, and then the run begins."""
    asks: bool = True
    """Is the front end asked when the given lines run out?"""
    is_over: bool = False
    """After the run: there is nothing to resume, any resume ends the pause."""
    edited: Event | None = None
    """The event of the stop with the values that the user has put into it."""

    @property
    def stack(self) -> list[Frame]:
        return self.stop.stack

    @property
    def event(self) -> Event | None:
        return self.stop.event

    @property
    def point(self) -> Point | None:
        return self.stop.point

    @property
    def reason(self) -> str:
        return self.stop.reason

    @property
    def forward(self) -> int:
        return self.stop.forward

    @property
    def python(self) -> FrameType | None:
        return self.stop.python

    @property
    def frame(self) -> Frame | None:
        """The selected frame."""
        return self.stack[self.selected] if self.stack else None

    @property
    def is_caught(self) -> bool:
        """Has a catchpoint stopped here, or an exception?"""
        return self.stop.error is not None or (self.point is not None and self.point.kind is PointKind.CATCH)

    @property
    def depth(self) -> int:
        return self.stack[0].depth if self.stack else 0

    @property
    def phase(self) -> Phase | None:
        return self.event.phase if self.event is not None else None

    def facts(self, step: int) -> dict[str, Any]:
        """Where the run stands, as data; `step`: how often the optimizer has stepped."""
        frame, python = (self.stack[0] if self.stack else None), self.python
        module = frame.module if frame is not None else None
        return {
            "path": frame.path if frame is not None and module is not None else None,
            "module": type(module).__name__ if module is not None else None,
            "phase": self.phase.value if self.phase is not None else None,
            "forward": self.forward,
            "step": step,
            "thread": threading.current_thread().name,
            "point": self.point.number if self.point is not None and self.point.number else None,
            "reason": self.reason,
            "exception": type(self.stop.error).__name__ if self.stop.error is not None else None,
            "file": python.f_code.co_filename if python is not None else None,
            "line": python.f_lineno if python is not None else None,
        }

    def select(self, index: int) -> Frame:
        if not self.stack:
            raise UserError("no module is running here", "`continue` to a stop")
        if not 0 <= index < len(self.stack):
            edge = "innermost" if index < 0 else "outermost"
            raise UserError(f"this is the {edge} frame", f"there are frames 0 to {len(self.stack) - 1}")
        self.selected = index
        self.scope.frame = self.stack[index]
        return self.stack[index]

    def release(self) -> None:
        """Let go of everything the pause looked at."""
        callers = {id(f): f for f in (self.python, *(frame.python for frame in self.stack)) if f is not None}
        for caller in callers.values():
            forget_locals(caller)
        self.scope.frame = None
        self.scope.stack = []
        self.stop = Stop(Nothing())


def describe(pause: Pause, shown: Shown) -> View:
    """What is shown at a stop. It changes nothing."""
    view = pause.stop.cause.view(pause.stop, shown)
    if pause.stop.trouble:
        view = Group((Notice(pause.stop.trouble, level="error"), view))
    if pause.thread_name:
        view = _titled(view, Span(f"thread {pause.thread_name}", "dim"))
    return view


def _titled(view: View, more: Span) -> View:
    """A stop with one word more in its title line."""
    if isinstance(view, Fields) and view.title:
        return replace(view, title=(*view.title, more))
    if isinstance(view, Group):
        for number, part in enumerate(view.views):
            if (titled := _titled(part, more)) is not part:
                return Group((*view.views[:number], titled, *view.views[number + 1 :]))
    return view


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was handed in."""

    text: str
    stop: int | None = None
    """The number of the stop that it is meant for; at any other one it is refused."""
    frame: int | None = None
    """The frame that it is answered in, if that is not the selected one."""
    origin: str = ""
    """Who sent it, if it was not typed here."""


class Inbox:
    """Lines from any thread, served by the paused one."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[Line, Future[View | None]]] = queue.SimpleQueue()
        self._is_open = False
        self._opening = threading.Lock()

    def open(self) -> None:
        """Take lines from now on."""
        with self._opening:
            self._is_open = True

    def close(self, reason: str) -> None:
        """Take no more lines; those that are still here are refused."""
        with self._opening:
            self._is_open = False
        while True:
            try:
                _, future = self._lines.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(UserError(reason))

    def post(self, line: Line) -> Future[View | None] | None:
        """Hand in a line; None if no thread is there to answer it."""
        with self._opening:  # or a line that comes as the pause ends would wait for ever
            if not self._is_open:
                return None
            future: Future[View | None] = Future()
            self._lines.put((line, future))
            return future

    def serve(
        self,
        run: Callable[[Line], tuple[View | None, Resume | None]],
        *,
        until: Callable[[], bool],
        leaving: Callable[[], None],
    ) -> Resume | None:
        """Answer lines until one of them resumes (its resume) or `until` says so (None).

        `leaving` is called before the sender of that line gets its answer: it must not ask again. A line that
        raises a `UserError` is answered with that error.
        """
        while not until():
            try:
                line, future = self._lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if not future.set_running_or_notify_cancel():
                continue
            try:
                view, resume = run(line)
                if resume is not None:
                    leaving()
            except UserError as error:
                future.set_exception(error)
                continue
            except BaseException:
                future.set_result(None)  # whoever asked must not wait for it
                raise
            future.set_result(view)
            if resume is not None:
                return resume
        return None
