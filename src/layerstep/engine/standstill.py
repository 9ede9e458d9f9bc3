"""Standing still: a thread has come to a stop, lines are answered, and one of them lets the run go on."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from layerstep.engine import stepper
from layerstep.engine.events import Kind, Resume
from layerstep.engine.pause import Pause
from layerstep.engine.stop import Stop
from layerstep.errors import QUIT_EXIT_CODE, Quit
from layerstep.imports import our_imports
from layerstep.process.interrupts import wake_main_thread
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Standstill"]


class Standstill:
    """How a session comes to a stop, serves it, and leaves it: the one way for every source of stops."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stop(self, stop: Stop) -> None:
        """Stand still at a stop until a line resumes the run."""
        self.hold(Pause(self._session.run.scope, stop))

    def hold(self, pause: Pause) -> Resume | None:
        """Stand still in this thread until a line resumes, and say how; a second thread waits its turn."""
        session = self._session
        with session.turns.taken(pause) as is_wanted:
            if not (is_wanted and (session.run.is_attached or pause.is_start or pause.is_over)):
                pause.release()
                return None
            if pause.point is not None and pause.point.temporary:
                session.points.delete(pause.point)
            if pause.point is not None and pause.is_caught:
                session.caught.append(f"{pause.point.what} in {pause.stack[0].path or 'the program'}")
            resume = self._serve(pause, session.turns.begin(pause))
        if session.interrupts.came_late and session.run.is_attached:
            self._stop_soon()  # it came while a line that resumes was on its way
        return resume

    def _serve(self, pause: Pause, step: stepper.Intent | None) -> Resume:
        """Serve a pause to its end; then a `step` of another thread goes on."""
        session = self._session
        session.run.pause = pause
        session.interrupts.forget()
        session.points.forget_until()
        session.run.intent = stepper.GO
        session.prompt.baseline = None
        session.run.scope.stack = pause.stack
        session.run.scope.frame = pause.frame
        try:
            with our_imports(), contextlib.ExitStack() as resting:
                for rest in session.instruments.at("resting"):
                    resting.enter_context(rest())
                resume = session.prompt.serve(pause)
            self._leave(pause, resume, step)
            return resume
        finally:
            pause.release()
            session.run.results.let_go()
            session.run.pause = None
            session.prompt.end()

    def _leave(self, pause: Pause, resume: Resume, step: stepper.Intent | None = None) -> None:
        session = self._session
        if pause.is_over:
            return
        if resume.kind is Kind.QUIT:
            session.quitting = threading.current_thread()
            session.detach()
            if wake_main_thread(Quit):
                raise SystemExit(QUIT_EXIT_CODE)  # threading keeps silent about this class, not about others
            raise Quit
        if resume.kind is Kind.DETACH:
            session.detach()
            return
        for resuming in session.instruments.at("resuming"):
            resuming(pause, resume)
        op = pause.event.op if pause.event is not None else None
        intent = stepper.begin(
            resume,
            phase=pause.phase,
            depth=pause.depth,
            thread=threading.get_ident(),
            within=op.within if op is not None else 0,
        )
        if resume.kind is Kind.FINISH and any(f.depth == intent.depth and not f.hooked for f in pause.stack):
            intent = replace(intent, everywhere=True)
        session.run.intent = step if step and resume.kind is Kind.CONTINUE else intent
        if resume.kind is Kind.INTO and pause.event is not None and pause.event.call is not None:
            session.backward_pass.open(pause.event.call)
        if resume.kind is Kind.CONTINUE and not any(point.action for point in session.points):
            # What a recording has put in view stays there until the next forward.
            session.run.seen_calls.clear()
        session.rearm()

    def interrupted(self) -> bool:
        """The first Ctrl-C: stop at the next boundary. False where it should interrupt at once."""
        session = self._session
        if session.quitting is not None:
            session.quitting.join(timeout=2)  # let it unwind: a thread that exit cuts off aborts in torch
            raise Quit
        if not session.run.is_attached:
            return False
        if session.run.pause is None:
            self._stop_soon()
        elif not session.interrupts.cancel():
            session.interrupts.came_late = True
        return True

    def _stop_soon(self) -> None:
        session = self._session
        session.run.intent = stepper.interrupt()
        session.rearm()
        session.say(Notice("stopping at the next module", "Ctrl-C again interrupts the program"))
