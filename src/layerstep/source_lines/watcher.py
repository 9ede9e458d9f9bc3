"""Points and steps at lines, for a session: what is followed, and what stops the run."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

from layerstep._torch import is_tracing
from layerstep.calls.events import Event, Phase
from layerstep.engine.instrument import Instrument
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.stop import Match
from layerstep.process.frames import is_inline, is_program_file, program_frames
from layerstep.source_lines.monitoring import Monitoring, free_tool
from layerstep.source_lines.places import Place
from layerstep.source_lines.statements import begins_in, read_source
from layerstep.source_lines.steps import LineMoment, LineStep, Side, decide
from layerstep.source_lines.tracer import Mark, Tracer
from layerstep.source_lines.tracing import SetTrace
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.pause import Pause
    from layerstep.engine.point import Point
    from layerstep.engine.session import Session

__all__ = ["SourceLines"]

_Placed = tuple["Point", Place]
_Lines = Mapping[int, tuple[_Placed, ...]]


class _Files(dict[str, "_Lines | None"]):
    """The lines with points of each file; found out when code of the file is met."""

    def __init__(self, look: Callable[[str], _Lines | None]) -> None:
        super().__init__()
        self._look = look

    def __missing__(self, name: str) -> _Lines | None:
        found = self[name] = self._look(name)
        return found


class SourceLines(Instrument):
    """Follows the functions that hold a point, or that a step goes through; others are left alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.script = ""
        """The file of the program, once it is known."""
        self.files = _Files(self._look)
        self.is_stepping = False
        self.trouble = ""
        """Why nothing can be followed."""
        self._step: LineStep | None = None
        self._origin: Mark | None = None
        self._outer: Mark | None = None
        self._points: list[_Placed] = []
        self._tracer: Tracer | None = None
        self._begins: dict[tuple[str, str, int, int], frozenset[int]] = {}
        self._followed: dict[tuple[str, str, int, int], bool] = {}
        self._is_resting = False

    def apply(self) -> None:
        """Follow what the points and the step need, from the next line on."""
        active = [point for point in self._session.points if point.enabled]
        self._points = [(point, cast(Place, point.source_line)) for point in active if point.source_line]
        self.is_stepping = self._step is not None
        self.files.clear()
        self._followed.clear()
        if not self._points and not self.is_stepping:
            self._let_go()
        elif not self._is_resting:
            self.trouble = self._tracer_now().start()

    def clear(self) -> None:
        """Take everything off."""
        self._points = []
        self._step = None
        self.is_stepping = False
        self._let_go()

    def cost(self) -> list[str]:
        if not (self._points or self.is_stepping) or self.trouble:
            return []
        what = self._step.kind.value if self._step is not None else f"{len(self._points)} points at lines"
        return [f"{self._tracer_now().words}, for {what}"]

    def why_silent(self) -> str:
        """What keeps every line from stopping; empty if nothing does."""
        return self.trouble or (self._tracer.why_silent() if self._tracer is not None else "")

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Meanwhile this thread is at the prompt and runs our code, which is not followed."""
        self._is_resting = True
        self._step = None
        if self._tracer is not None:
            self._tracer.rest()
        try:
            yield
        finally:
            self._is_resting = False

    @property
    def follows_new_threads_only(self) -> bool:
        """Are threads left out that ran already when lines were first asked for?"""
        return isinstance(self._tracer, SetTrace)

    def resuming(self, pause: Pause, resume: Resume) -> None:
        """Note where a step by lines may end."""
        self._step = self._origin = self._outer = None
        if not resume.kind.is_by_line:
            return
        self._step = LineStep(resume.kind, threading.get_ident(), resume.count, resume.line)
        if resume.kind is Kind.LINE:
            return
        frames = list(program_frames(pause.frame.python if pause.frame is not None else None))
        if not frames:  # before the run: the first line of the program
            self._step = LineStep(Kind.LINE, threading.get_ident())
            return
        self._origin = self._tracer_now().mark(frames[:1])
        self._outer = self._tracer_now().mark(frames[1:])

    def follows(self, code: CodeType) -> bool:
        """Does this function hold a point, or does a step go through every function?"""
        lines = self.files[code.co_filename]
        if lines is None:
            return False
        if self._step is not None and self._step.kind is Kind.LINE:
            return True
        key = _key(code)
        known = self._followed.get(key)
        if known is None:
            inside = {line for _, _, line in code.co_lines() if line is not None and line in lines}
            for _, place in (placed for line in inside for placed in lines[line]):
                place.was_entered |= place.function in ("", code.co_qualname)
            known = self._followed[key] = bool(inside)
        return known

    def reached(self, frame: FrameType) -> None:
        """A line is about to run. Never raises but to quit: a bug of ours detaches and lets the run go on."""
        session = self._session
        if session.run.is_silent or not session.run.is_attached:
            return
        try:
            begins = not is_inline(frame) and frame.f_lasti in self._begins_of(frame.f_code)
            if begins and not is_tracing():
                self._consider(frame)
        except Exception as error:
            session.fail(error)

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function returns. Never raises but to quit."""
        if (
            self._session.run.is_silent
            or not self._session.run.is_attached
            or frame.f_trace is not self._origin
        ):
            return
        try:
            if self._has_arrived(LineMoment(threading.get_ident(), Side.ORIGIN, is_return=True)):
                self._session.standstill.stop_here(frame, "", output=(value,))
        except Exception as error:
            self._session.fail(error)

    def _consider(self, frame: FrameType) -> None:
        name, line = frame.f_code.co_qualname, frame.f_lineno
        at = (self.files[frame.f_code.co_filename] or {}).get(line, ())
        points = tuple(point for point, place in at if place.function in ("", name))
        match: Match | None = None
        if points:
            match = self._session.decision.ask(points, Event(Phase.LINE, None, (), {}), frame)
        moment = LineMoment(threading.get_ident(), self._side(frame), line)
        if self._has_arrived(moment) or match is not None:
            self._session.standstill.stop_here(frame, "", match=match)

    def _side(self, frame: FrameType) -> Side:
        mark = frame.f_trace
        if mark is None or mark not in (self._origin, self._outer):
            return Side.ELSEWHERE
        return Side.ORIGIN if mark is self._origin else Side.OUTER

    def _has_arrived(self, moment: LineMoment) -> bool:
        if self._step is None:
            return False
        stops, self._step = decide(self._step, moment)
        return stops

    def _begins_of(self, code: CodeType) -> frozenset[int]:
        key = _key(code)
        found = self._begins.get(key)
        if found is None:
            found = self._begins[key] = begins_in(code, read_source(code.co_filename))
        return found

    def _tracer_now(self) -> Tracer:
        if self._tracer is None:
            tool = free_tool()
            self._tracer = Monitoring(self, tool) if tool is not None else SetTrace(self)
        return self._tracer

    def _let_go(self) -> None:
        self.trouble = ""
        self.files.clear()
        self._followed.clear()
        self._begins.clear()
        if self._tracer is not None:
            self._tracer.stop()
            self._tracer = None

    def _look(self, name: str) -> _Lines | None:
        """The lines of a file that is met for the first time; None if it is of no interest."""
        try:
            file = os.path.realpath(name)
            lines: dict[int, tuple[_Placed, ...]] = {}
            for point, place in self._points:
                self._settle(point, place, name)
                if place.file == file and not place.is_pending:
                    lines[place.line] = (*lines.get(place.line, ()), (point, place))
            is_own = self.is_stepping and (is_program_file(name) or name == self.script)
            return lines if lines or is_own else None
        except Exception as error:
            self._session.fail(error)
            return None

    def _settle(self, point: Point, place: Place, name: str) -> None:
        """A file that a point waits for is there."""
        if not place.is_pending or place.trouble or name.startswith("<"):
            return
        if place.settle(name):
            self._session.say(Notice(f"{point.kind} {point.number} is now set at {place.label}", place.moved))
        elif place.trouble:
            self._session.say(Notice(f"{point.kind} {point.number}: {place.trouble}", level="warn"))


def _key(code: CodeType) -> tuple[str, str, int, int]:
    """A function of a file. Code objects hash by their content, which takes a microsecond."""
    return code.co_filename, code.co_qualname, code.co_firstlineno, len(code.co_code)
