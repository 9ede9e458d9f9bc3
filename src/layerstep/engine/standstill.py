"""Standing still: a thread has come to a stop, lines are answered, and one of them lets the run go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import modes_off
from layerstep.calls.backward import Call
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame, line_stack
from layerstep.engine import stepper
from layerstep.engine.causes import AtLine
from layerstep.engine.instrument import Instruments
from layerstep.engine.messages import Messages
from layerstep.engine.pause import Pause
from layerstep.engine.points import Catch, Points, Record
from layerstep.engine.prompt import Prompt
from layerstep.engine.restart import Restart
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.run import Run
from layerstep.engine.stop import Cause, Match, Nothing, Stop
from layerstep.engine.threads import Turns
from layerstep.errors import QUIT_EXIT_CODE, Quit
from layerstep.imports import our_imports
from layerstep.process.frames import is_ours
from layerstep.process.interrupts import Interrupts, wake_main_thread
from layerstep.views import Notice

__all__ = ["Standstill"]


class Standstill:
    """How a session comes to a stop, serves it, and leaves it: the one way for every source of stops."""

    def __init__(
        self,
        run: Run,
        points: Points,
        *,
        prompt: Prompt,
        turns: Turns,
        instruments: Instruments[Any],
        interrupts: Interrupts,
        messages: Messages,
        detach: Callable[[], None],
        rearm: Callable[[], None],
        add_model: Callable[[nn.Module], object],
        open_call: Callable[[Call], None],
    ) -> None:
        self._run = run
        self._points = points
        self._prompt = prompt
        self._turns = turns
        self._instruments = instruments
        self._interrupts = interrupts
        self._messages = messages
        self._detach = detach
        self._rearm = rearm
        self._add_model = add_model
        self._open_call = open_call
        """Lets `into` stop at the autograd nodes of a call."""
        self.quitting: threading.Thread | None = None
        """The thread whose `quit` ends the program, once there is one."""
        self.caught: list[str] = []
        """What catchpoints have caught; in batch work the exit code tells."""

    def stop_in(
        self, stack: list[Frame], event: Event, match: Match | None, *, cause: Cause, trouble: str = ""
    ) -> Event | None:
        """Stop at an event, in the module calls that it is in; the event as the user has edited it."""
        owner = self._run.models.owner_of(event.module)
        if event.phase is Phase.EXIT:
            self._run.seen_calls.keep(event.module, event.args, event.kwargs, event.output)
        return self.stop(
            Stop(
                cause,
                stack,
                event,
                point=match.point if match is not None else None,
                reason=match.point.label if match is not None else "",
                trouble=trouble or (match.trouble if match is not None else ""),
                forward=owner.forwards if owner is not None else 0,
                python=stack[0].caller if stack else None,
            )
        )

    def stop_here(
        self,
        frame: FrameType | None,
        reason: str,
        *,
        match: Match | None = None,
        output: tuple[Any, ...] = (),
    ) -> None:
        """Stop at a line of the user's code, as `set_trace()` does.

        `output`: the value that the function is about to return.
        """
        while frame is not None and is_ours(frame):
            frame = frame.f_back
        if frame is None:
            return
        self._run.models.refresh()
        stack = line_stack(frame, self._run.models)
        modules = [each.module for each in stack if each.module is not None]
        if modules and self._run.models.owner_of(modules[-1]) is None:
            self._add_model(modules[-1])
        if output:
            stack[0].output, stack[0].state = output[0], "returns"
        owner = self._run.models.owner_of(modules[0]) if modules else None
        stop = Stop(
            AtLine(),
            stack,
            point=match.point if match is not None else None,
            reason=(match.point.label if match is not None else "") or reason,
            trouble=match.trouble if match is not None else "",
            forward=owner.forwards if owner is not None else 0,
            python=frame,
        )
        with self.pausing():
            self.stop(stop)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """No mode sees what is done at a stop; after it, those are on that the user's answer needs."""
        with modes_off():
            yield
        for settle in self._instruments.at("settle"):
            settle()  # outside of the guards: they put back what they found

    def stop(self, stop: Stop) -> Event | None:
        """Stand still at a stop until a line resumes the run; its event, if the user has edited it."""
        pause = Pause(self._run.scope, stop)
        self.hold(pause)
        return pause.edited

    def hold(self, pause: Pause) -> Resume | None:
        """Stand still in this thread until a line resumes, and say how; a second thread waits its turn."""
        with self._turns.taken(pause) as is_wanted:
            if not (is_wanted and (self._run.is_attached or pause.is_start or pause.is_over)):
                pause.release()
                return None
            if pause.point is not None and pause.point.temporary:
                self._points.delete(pause.point)
            if pause.point is not None and pause.is_caught:
                what = pause.point.what if isinstance(pause.point, Catch) else ""
                self.caught.append(f"{what} in {pause.stack[0].path or 'the program'}")
            resume = self._serve(pause, self._turns.begin(pause))
        if self._interrupts.came_late and self._run.is_attached:
            self.stop_soon("Ctrl-C again interrupts the program")  # it came as the run was about to go on
        return resume

    def _serve(self, pause: Pause, step: stepper.Intent | None) -> Resume:
        """Serve a pause to its end; then a `step` of another thread goes on."""
        self._run.pause = pause
        self._interrupts.forget()
        self._points.forget_until()
        self._run.intent = stepper.GO
        self._prompt.effects.begin_pause()
        self._run.scope.stack = pause.stack
        self._run.scope.frame = pause.frame
        try:
            with our_imports(), contextlib.ExitStack() as resting:
                for rest in self._instruments.at("resting"):
                    resting.enter_context(rest())
                resume = self._prompt.serve(pause)
            self._leave(pause, resume, step)
            return resume
        finally:
            pause.release()
            self._run.results.let_go()
            self._run.pause = None
            self._prompt.end()

    def go_on(self) -> None:
        """Let the run go on as `continue` does, whatever step or `until` it was in the middle of."""
        self._points.forget_until()
        self._leave(Pause(self._run.scope, Stop(Nothing())), Resume(Kind.CONTINUE))

    def _leave(self, pause: Pause, resume: Resume, step: stepper.Intent | None = None) -> None:
        if pause.is_over and resume.kind is not Kind.BACK_STEP:
            return
        if resume.kind is Kind.QUIT:
            self.quitting = threading.current_thread()
            self._detach()
            if wake_main_thread(Quit):
                raise SystemExit(QUIT_EXIT_CODE)  # threading keeps silent about this class, not about others
            raise Quit
        if resume.kind is Kind.DETACH:
            self._detach()
            return
        for resuming in self._instruments.at("resuming"):
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
        self._run.intent = step if step and resume.kind is Kind.CONTINUE else intent
        if resume.kind is Kind.INTO and pause.event is not None and pause.event.call is not None:
            self._open_call(pause.event.call)
        if resume.kind is Kind.CONTINUE and not any(isinstance(point, Record) for point in self._points):
            # What a recording has put in view stays there until the next forward.
            self._run.seen_calls.clear()
        self._rearm()
        if resume.kind is Kind.BACK:
            raise Restart

    def interrupted(self) -> bool:
        """The first Ctrl-C: stop at the next boundary. False where it should interrupt at once."""
        if self.quitting is not None:
            self.quitting.join(timeout=2)  # let it unwind: a thread that exit cuts off aborts in torch
            raise Quit
        if not self._run.is_attached:
            return False
        if self._run.pause is None:
            self.stop_soon("Ctrl-C again interrupts the program")
        elif not self._interrupts.cancel():
            self._interrupts.came_late = True
        return True

    def stop_soon(self, hint: str = "") -> None:
        """Stop at the next module that is called; from any thread."""
        self._run.intent = stepper.interrupt()
        self._rearm()
        self._messages.say(Notice("stopping at the next module", hint))
