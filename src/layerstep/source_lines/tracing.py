"""Lines by `sys.settrace`: the way of Python 3.11, and of a later one whose monitoring tools are all taken.

Python then calls us at every function call of a thread, so the answer for a file is one look-up. Only
functions that hold a point, or that a step goes through, are followed line by line.

A thread that is followed enters no function while Python 3.11 has an exception to deliver to another thread
(`PyThreadState_SetAsyncExc`): it looks for one at the same instruction again and again. So no exception may
be left undelivered, see `process/interrupts`.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from layerstep.source_lines.tracer import Mark, Watched

__all__ = ["SetTrace"]


class SetTrace:
    """The trace function of a session, in each thread that it was put on."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._is_on = False
        self._called, self._local = self._make(watched)

    def _make(self, watched: Watched) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Closures: an attribute look-up less at every call of the program."""
        files, reached, returned = watched.files, watched.reached, watched.returned

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if not self._is_on:
                return self._leave(frame)
            if event == "line":
                lines = files[frame.f_code.co_filename]
                if lines is not None and (watched.is_stepping or frame.f_lineno in lines):
                    with _variables_kept(frame):
                        reached(frame)
            elif event == "return" and watched.is_stepping and _is_returning(frame):
                with _variables_kept(frame):
                    returned(frame, arg)
            return frame.f_trace  # a step may have put its mark there meanwhile

        def called(frame: FrameType, event: str, arg: Any) -> Any:
            if not self._is_on:
                return self._leave(frame)
            if files[frame.f_code.co_filename] is None:
                return None
            if frame.f_trace is not None:  # a generator goes on: its mark stays
                return frame.f_trace
            return local if watched.follows(frame.f_code) else None

        return called, local

    @property
    def words(self) -> str:
        return "a trace function, called at every Python call"

    def mark(self, frames: Sequence[FrameType]) -> Mark:
        mark = Mark(self._local)
        for frame in frames:
            frame.f_trace = mark
        return mark

    def start(self) -> str:
        """Follow this thread, and those that begin from now on; why not, if another tracer is there."""
        present = sys.gettrace()
        if present is not None and present is not self._called:
            return f"another trace function is on: {_name_of(present)}"
        self._is_on = True
        if threading.gettrace() is None:
            threading.settrace(self._called)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and self._watched.follows(frame.f_code):
                frame.f_trace = self._local
            frame = frame.f_back
        sys.settrace(self._called)
        return ""

    def rest(self) -> None:
        """Leave this thread alone until the next start: the prompt is ours, and would be followed."""
        if sys.gettrace() is self._called:
            sys.settrace(None)

    def stop(self) -> None:
        """Leave this thread now; another one leaves at its next event, for only itself can do that."""
        self._is_on = False
        if threading.gettrace() is self._called:
            threading.settrace(None)
        self._leave(sys._getframe(1))

    def _leave(self, frame: FrameType | None) -> None:
        """Take the trace function off this thread, and off the frames from here on."""
        self.rest()
        while frame is not None:
            if frame.f_trace is self._local or isinstance(frame.f_trace, Mark):
                frame.f_trace = None
            frame = frame.f_back

    def why_silent(self) -> str:
        """What has come between, seen from this thread."""
        present = sys.gettrace()
        if self._is_on and present is not None and present is not self._called:
            return f"another trace function has taken over: {_name_of(present)}"
        return ""


@contextlib.contextmanager
def _variables_kept(frame: FrameType) -> Iterator[None]:
    """Meanwhile we may look at the variables of a frame, and let go of the copy that Python makes for that.

    Up to Python 3.12 it writes the copy back when a trace function returns. So it must be made anew: what is
    missing there is unbound afterwards, and another thread may have assigned a variable of a closure.
    """
    try:
        yield
    finally:
        frame.f_locals  # noqa: B018


def _is_returning(frame: FrameType) -> bool:
    """A yield and an exception are reported as returns, too."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith("RETURN_") and name != "RETURN_GENERATOR"


def _name_of(tracer: Any) -> str:
    kind = tracer if hasattr(tracer, "__qualname__") else type(tracer)
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}".lstrip(".")
