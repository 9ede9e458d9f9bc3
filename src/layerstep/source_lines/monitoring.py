"""Lines by `sys.monitoring`, from Python 3.12 on: a line without a point is reported only once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from layerstep.process.thread_frames import frames_of_threads
from layerstep.source_lines.tracer import Mark, Watched

__all__ = ["Monitoring", "free_tool"]

_TOOLS = (3, 4, 0)
"""The numbers that no kind of tool has by convention, then that of debuggers."""


def free_tool() -> int | None:
    """The number of a monitoring tool that is not in use; None before Python 3.12 and where all are taken."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return None
    return next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)


class Monitoring:
    """Callbacks on the code objects of interest, in all threads."""

    def __init__(self, watched: Watched, tool: int) -> None:
        self._watched = watched
        self._tool = tool
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._codes: dict[int, CodeType] = {}
        self._marked: list[CodeType] = []
        self._is_on = False

    @property
    def words(self) -> str:
        return "sys.monitoring, on the functions that hold a point"

    def mark(self, frames: Sequence[FrameType]) -> Mark:
        """No line is reported from a frame on which another tracer has its own function."""
        mark = Mark()
        for frame in frames:
            self._marked.append(frame.f_code)
            if frame.f_trace is None or isinstance(frame.f_trace, Mark):
                frame.f_trace = mark
        return mark

    def start(self) -> str:
        monitoring, events = self._monitoring, self._monitoring.events
        if not self._is_on:
            if monitoring.get_tool(self._tool) is not None:
                return f"the monitoring tool {self._tool} was taken by {monitoring.get_tool(self._tool)}"
            monitoring.use_tool_id(self._tool, "layerstep")
            monitoring.register_callback(self._tool, events.PY_START, self._started)
            monitoring.register_callback(self._tool, events.PY_RESUME, self._started)
            monitoring.register_callback(self._tool, events.LINE, self._line)
            monitoring.register_callback(self._tool, events.PY_RETURN, self._returned)
            self._is_on = True
        for frame in list(frames_of_threads().values()):
            self._follow_stack(frame)
        self._follow_stack(sys._getframe(1))
        while self._marked:
            self._follow(self._marked.pop())
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME)
        monitoring.restart_events()
        return ""

    def rest(self) -> None:
        """Nothing to do: our own code is not of interest, and is reported once."""

    def stop(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        monitoring, events = self._monitoring, self._monitoring.events
        monitoring.set_events(self._tool, 0)
        for code in self._codes.values():
            with contextlib.suppress(Exception):
                monitoring.set_local_events(self._tool, code, 0)
        self._codes.clear()
        for event in (events.PY_START, events.PY_RESUME, events.LINE, events.PY_RETURN):
            monitoring.register_callback(self._tool, event, None)
        monitoring.free_tool_id(self._tool)

    def why_silent(self) -> str:
        if self._is_on and self._monitoring.get_tool(self._tool) != "layerstep":
            return f"the monitoring tool {self._tool} was taken by another"
        return ""

    def _follow_stack(self, frame: FrameType | None) -> None:
        while frame is not None:
            if self._watched.follows(frame.f_code):
                self._follow(frame.f_code)
            frame = frame.f_back

    def _follow(self, code: CodeType) -> None:
        self._codes[id(code)] = code
        events = self._monitoring.events
        self._monitoring.set_local_events(self._tool, code, events.LINE | events.PY_RETURN)

    def _started(self, code: CodeType, offset: int) -> Any:
        if self._is_on and self._watched.files[code.co_filename] is not None and self._watched.follows(code):
            self._follow(code)
        return self._monitoring.DISABLE

    def _line(self, code: CodeType, line: int) -> Any:
        lines = self._watched.files[code.co_filename]
        if lines is None or not (self._watched.is_stepping or line in lines):
            return self._monitoring.DISABLE
        self._watched.reached(sys._getframe(1))
        return None

    def _returned(self, code: CodeType, offset: int, value: Any) -> Any:
        if not self._watched.is_stepping:
            return self._monitoring.DISABLE
        self._watched.returned(sys._getframe(1), value)
        return None
