"""The session: it owns the models, the points and the taps, decides at each event, and pauses.

It is given an interpreter for lines and listeners for what there is to say; it prints nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import is_in_backward, is_tracing, modes_off
from layerstep.config import Config
from layerstep.engine import stepper
from layerstep.engine.backward_pass import BackwardPass
from layerstep.engine.causes import AtLine, AtModule
from layerstep.engine.compiled import CompiledFunctions
from layerstep.engine.discovery import Discovery
from layerstep.engine.events import Event, Phase, Resume
from layerstep.engine.guard import Outcome
from layerstep.engine.installation import Installation
from layerstep.engine.instrument import Instruments
from layerstep.engine.lifetime import leave_at_exit, leave_forked_children
from layerstep.engine.line_effects import watching_line
from layerstep.engine.messages import Interpreter, Message, NoCommands, is_lost
from layerstep.engine.model_intake import ModelIntake
from layerstep.engine.models import Model
from layerstep.engine.overwritten_inputs import OverwrittenInputs
from layerstep.engine.pause import Pause
from layerstep.engine.points import Point, Points
from layerstep.engine.program_frames import line_stack
from layerstep.engine.prompt import Prompt
from layerstep.engine.run import Run
from layerstep.engine.scope import run_python
from layerstep.engine.stack import Frame, build_stack, is_ours
from layerstep.engine.standstill import Standstill
from layerstep.engine.stop import Caught, Cause, Match, Nothing, Stop
from layerstep.engine.stop_decision import StopDecision
from layerstep.engine.threads import Turns
from layerstep.errors import describe_bug
from layerstep.imports import our_imports
from layerstep.process.interrupts import Interrupts, is_from_a_signal, not_now
from layerstep.views import Notice, View

__all__ = ["Session"]

_ENTER = Phase.ENTER


class Session:
    """One debugger on one process."""

    def __init__(self, interpreter: Interpreter | None = None, config: Config | None = None) -> None:
        self.run = Run(config or Config(), self.fail)
        self.points = Points()
        self.prompt = Prompt(self, interpreter or NoCommands())
        self.quitting: threading.Thread | None = None
        self.caught: list[str] = []
        """What catchpoints have caught; in batch work the exit code tells."""
        self.overwritten_inputs = OverwrittenInputs(self)
        self.installation = Installation(self)
        self.intake = ModelIntake(self)
        self.backward_pass = BackwardPass(self)
        self.instruments = Instruments(self)
        self.discovery = Discovery(self._arrived, self._raised)
        self.standstill = Standstill(self)
        self.interrupts = Interrupts(
            self.standstill.interrupted, has_pause=lambda: self.run.pause is not None
        )
        self.decision = StopDecision(self)
        self._listeners: list[Callable[[Message], None]] = []
        self.turns = Turns(self)
        self.compiled = CompiledFunctions(lambda _: self.rearm(), self.fail)
        leave_forked_children(self)
        leave_at_exit(self)

    def listen(self, listener: Callable[[Message], None]) -> None:
        self._listeners.append(listener)

    def say(
        self,
        view: View,
        kind: str = "notice",
        line: str = "",
        *,
        origin: str = "",
        stop: dict[str, Any] | None = None,
    ) -> None:
        with not_now(), our_imports():
            for listener in list(self._listeners):
                try:
                    listener(Message(kind, view, line, origin, stop))
                except Exception as error:  # never a reason for the run to end
                    if is_lost(error) and listener in self._listeners:
                        self._listeners.remove(listener)

    def attach(self, *, discover: bool = False) -> None:
        """Let points take effect; `discover` also finds models as they are called."""
        self.run.is_attached = True
        self.run.training.start()
        self.compiled.start()
        if discover:
            self.discovery.start()
        if self.prompt.frontend is not None:
            self.interrupts.start()
        self.rearm()

    def detach(self) -> None:
        """Take everything off the run."""
        with not_now(), self.turns.arming:
            self._take_off()

    def _take_off(self) -> None:
        self.run.is_attached = False
        self.discovery.stop()
        self.compiled.stop()
        self.interrupts.stop()
        self.installation.clear()
        self.backward_pass.graph.forget()
        self.run.training.stop()
        self.run.seen_calls.clear()
        self.run.intent = stepper.GO
        self.points.forget_until()

    def close(self) -> None:
        """Let the front end go, so that it leaves its terminal as it found it."""
        if self.prompt.frontend is not None:
            self.prompt.frontend.close()

    def add_model(self, root: nn.Module, name: str = "") -> Model:
        """Take in a model and set the points that waited for it."""
        model = self.run.models.add(root, name)
        self.intake.resolve_points()
        self.rearm()
        return model

    def rearm(self) -> None:
        """Make the taps what the points and the intent need."""
        with not_now(), self.turns.arming:
            if self.run.is_attached:
                for prepare in self.instruments.at("prepare"):
                    prepare()
                self.installation.apply(self.run.intent, self.run.pause)

    def report(
        self,
        phase: Phase,
        points: tuple[Point, ...],
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> None:
        """What taps call, with the frame of the module call.

        Never raises but to quit: a bug of ours detaches and lets the run go on.
        """
        if self.run.evaluations.depth or not self.run.is_attached:
            return
        try:
            sink = self.installation.sink
            if (phase is _ENTER or sink.noting or sink.lies_open or is_in_backward()) and self._is_only_noted(
                phase, points, module, args, kwargs, output, frame
            ):
                return
            if points:
                if is_tracing():
                    return
                points = self.decision.worth_asking(points, phase, module, args, kwargs, output)
            if points or sink.listening:
                self._consider(points, Event(phase, module, args, kwargs, output), frame)
        except Exception as error:
            self.fail(error)

    def _is_only_noted(
        self,
        phase: Phase,
        points: tuple[Point, ...],
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> bool:
        """Note the call for those who follow it; is it only recomputed?"""
        recomputed = is_in_backward()
        if phase is Phase.ENTER and not recomputed and id(module) in self.installation.taps.roots:
            self._begin(module, args, kwargs)
        if self.installation.sink.noting:
            values = (args, kwargs) if phase is Phase.ENTER else output
            self.backward_pass.note(phase, module, values, frame)
        if recomputed and not self.run.config.recompute:
            for point in points:
                point.recomputed += 1
            return True
        for called in self.instruments.at("called"):
            called(phase, points, module, frame)
        return False

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """An outermost call begins."""
        if not self.discovery.is_on:
            self.intake.count(module)
        for begins in self.instruments.at("begins"):
            begins(module, args, kwargs)

    def _consider(self, points: tuple[Point, ...], event: Event, frame: FrameType) -> None:
        match = self.decision.ask(points, event, frame) if points else None
        trouble = match.trouble if match is not None else ""
        if match is not None and match.caught is not None:
            match, trouble = self._stop_elsewhere(match, match.caught)
        stepped = self.decision.has_arrived(event, frame) if self.installation.sink.listening else False
        if (match is not None or stepped) and not is_tracing():
            self._stop_at(event, frame, match, trouble)

    def _stop_elsewhere(self, match: Match, caught: Caught) -> tuple[Match | None, str]:
        """Stop where what was caught was made, if it says where; what is left to stop for at the event."""
        if caught.elsewhere is None:
            return match, caught.text
        with modes_off():
            failed = caught.elsewhere(match.point, self.stop)
        return (match, f"{caught.text}; {failed}") if failed else (None, "")

    def _stop_at(self, event: Event, frame: FrameType, match: Match | None, trouble: str) -> None:
        for arriving in self.instruments.at("arriving"):
            arriving(event, frame)
        with self.pausing():
            self.run.models.refresh()
            self.run.seen_calls.trim()
            stack = build_stack(frame, self.run.models, event=event)
            if event.phase is Phase.EXIT and stack:
                stack[0].overwritten = self.overwritten_inputs.overwritten(event.module)
            self.stop_in(stack, event, match, cause=AtModule(), trouble=trouble)

    def fail(self, error: Exception) -> None:
        """Take a bug of ours off the run; what a signal handler of the program raised is passed on to it."""
        if is_from_a_signal(error):
            raise error
        with contextlib.suppress(Exception):
            self.detach()
        with contextlib.suppress(Exception):
            self.say(Notice(describe_bug(error), "detached; the run goes on untouched", level="error"))

    def _arrived(self, module: nn.Module, frame: FrameType, is_new: bool) -> None:
        if self.run.evaluations.depth or not self.run.is_attached:
            return
        try:
            if is_new and self.run.models.owner_of(module) is None:  # a checkpoint calls parts by themselves
                self.intake.meet(module, frame)
            self.intake.count(module)
        except Exception as error:
            self.fail(error)

    def _raised(self, error: BaseException) -> None:
        for raised in self.instruments.at("raised"):
            raised(error)

    def leaving(self, error: BaseException, points: tuple[Point, ...]) -> None:
        """An exception leaves a tapped module."""
        for leaving in self.instruments.at("leaving"):
            leaving(error, points)

    def stop_in(
        self, stack: list[Frame], event: Event, match: Match | None, *, cause: Cause, trouble: str = ""
    ) -> None:
        """Stop at an event, in the module calls that it is in."""
        owner = self.run.models.owner_of(event.module)
        if event.phase is Phase.EXIT:
            self.run.seen_calls.keep(event.module, event.args, event.kwargs, event.output)
        self.stop(
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
        self.run.models.refresh()
        stack = line_stack(frame, self.run.models)
        modules = [each.module for each in stack if each.module is not None]
        if modules and self.run.models.owner_of(modules[-1]) is None:
            self.add_model(modules[-1])
        if output:
            stack[0].output, stack[0].state = output[0], "returns"
        owner = self.run.models.owner_of(modules[0]) if modules else None
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

    def start(self, *, ask: bool) -> None:
        """Take the lines that come before the run; `ask` for more when the given ones run out."""
        self.hold(Pause(self.run.scope, Stop(Nothing()), is_start=True, asks=ask))

    def stop(self, stop: Stop) -> None:
        """Stand still until a line resumes the run; a second thread waits its turn."""
        self.standstill.stop(stop)

    def hold(self, pause: Pause) -> Resume | None:
        """The same for a pause before or after the run; how it was left."""
        return self.standstill.hold(pause)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """No mode sees what is done at a stop; after it, those are on that the user's answer needs."""
        with modes_off():
            yield
        for settle in self.instruments.at("settle"):
            settle()  # outside of the guards: they put back what they found

    def evaluate(self, text: str, *, deep: bool = True) -> tuple[Any, str, Outcome]:
        """Python in the paused frame: its value, what it printed, and what it did to the run."""
        with watching_line(self, text, deep=deep) as outcome:
            value, printed = run_python(text, self.run.scope)
        return value, printed, outcome
