"""Calls of tapped modules: each is noted, counted and asked about, and the run may stop there."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import NO_BACKWARD, graph_task, is_in_backward, is_tracing, modes_off
from layerstep._torch.modes import users_modes_aside
from layerstep._torch.process_state import global_hooks_silent
from layerstep.calls.events import Event, Phase
from layerstep.calls.overwritten_inputs import OverwrittenInputs
from layerstep.calls.stack import build_stack
from layerstep.engine.backward_pass import BackwardPass
from layerstep.engine.causes import AtModule
from layerstep.engine.instrument import Instruments
from layerstep.engine.messages import Messages
from layerstep.engine.model_intake import ModelIntake
from layerstep.engine.point import Point
from layerstep.engine.points import Break
from layerstep.engine.restart import Follower, PassedCalls, Restart
from layerstep.engine.run import Run
from layerstep.engine.standstill import Standstill
from layerstep.engine.stop import Caught, Match
from layerstep.engine.stop_decision import StopDecision
from layerstep.errors import first_line
from layerstep.hooks.taps import Sink, Taps
from layerstep.side_effects.random_streams import OtherThreads, RandomState

__all__ = ["ModuleCalls"]

_ENTER = Phase.ENTER


class ModuleCalls:
    """What the taps of a session report to."""

    def __init__(
        self,
        run: Run,
        *,
        decision: StopDecision,
        standstill: Standstill,
        instruments: Instruments[Any],
        intake: ModelIntake,
        backward_pass: BackwardPass,
        overwritten_inputs: OverwrittenInputs,
        messages: Messages,
        fail: Callable[[Exception], None],
    ) -> None:
        self._run = run
        self._evaluating = run.evaluating_threads
        self._followers = run.followers
        self._passed = run.passed_calls
        self._decision = decision
        self._standstill = standstill
        self._instruments = instruments
        self._intake = intake
        self._backward_pass = backward_pass
        self._overwritten_inputs = overwritten_inputs
        self._messages = messages
        self._fail = fail
        self._sink = Sink(
            self.report, self._run_plain, self._leaving, self._entered, self._edit, self._only_counts
        )
        self.taps = Taps(self._sink)

    def report(
        self,
        phase: Phase,
        points: tuple[Point, ...],
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> Any:
        """What taps call, with the frame of the module call; what torch is to go on with, if not the same.

        Never raises but to quit or to begin the forward again: a bug of ours detaches and lets the run go on.
        """
        if self._evaluating and get_ident() in self._evaluating:
            return self._report_silently(phase, module, args, kwargs, output, frame)
        if not self._run.is_attached:
            return None
        if self._passed:
            self._count_passed(phase, module)
        try:
            sink = self._sink
            if phase is _ENTER or sink.noting or sink.lies_open or graph_task() != NO_BACKWARD:
                event = Event(phase, module, args, kwargs, output)
                if self._is_only_noted(event, points, frame):
                    return None
            if points and is_tracing():
                return None
            worth_asking = self._decision.worth_asking
            asked = worth_asking(points, phase, module, args, kwargs, output, frame) if points else ()
            goes_past = self._decision.goes_past
            if asked or (sink.listening and not goes_past(phase, module, args, kwargs, output, frame)):
                return self._consider(asked, Event(phase, module, args, kwargs, output), frame)
        except Restart:
            return self._run_again(phase, module, args, kwargs, frame)
        except Exception as error:
            self._fail(error)
        return None

    def _only_counts(self, points: tuple[Point, ...], module: nn.Module) -> bool:
        """Count the exit of a module where all else is that a hit is ignored; `report` does it for the rest.

        This is what most calls are while a point is ignored, and they wait for it.
        """
        point = points[0]
        if type(point) is not Break or point.ignore <= 0 or point.condition is not None or len(points) > 1:
            return False
        if not point.enabled or point.is_shared or self._evaluating or not self._run.is_attached:
            return False
        if self._sink.lies_open or graph_task() != NO_BACKWARD or is_tracing():
            return False
        if self._passed and (passed := self._passed.get(get_ident())) is not None:
            passed.left.append(module)
            if len(passed.left) > PassedCalls.MOST:
                passed.count()
        point.hits += 1
        point.ignore -= 1
        return True

    def _count_passed(self, phase: Phase, module: nn.Module) -> None:
        if (passed := self._passed.get(get_ident())) is not None:
            calls = passed.entered if phase is _ENTER else passed.left
            calls.append(module)
            if len(calls) > PassedCalls.MOST:
                passed.count()

    def _report_silently(
        self, phase: Phase, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> Any:
        """A call in an evaluation is not heard. It may be one of a forward that runs again, however."""
        follower = self._follower() if self._followers else None
        if follower is None or not follower.is_silent:
            return None
        try:
            return self._pass_silently(follower, Event(phase, module, args, kwargs, output), frame)
        except Restart:
            return self._run_again(phase, module, args, kwargs, frame)

    def _run_again(self, phase: Phase, module: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Called where `Restart` passes: at the exit of a forward that can begin again, it does so here."""
        follower = self._follower()
        if follower is None or not follower.is_over or module is not follower.module:
            raise
        output = follower.run_again()
        if edits := self.taps.asked_at(module, Phase.EDIT_OUTPUT):  # their tap was passed before
            edited = self._edit(phase, edits, module, args, kwargs, output, frame)
            output = output if edited is None else edited
        points = self.taps.asked_at(module, phase)  # as they are now: at the stop some may have been deleted
        replaced = self.report(phase, points, module, args, kwargs, output, frame)
        return output if replaced is None else replaced

    def _edit(
        self,
        phase: Phase,
        points: tuple[Point, ...],
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> Any:
        """What taps of edits call: what torch is to go on with, if not the same.

        A call that is recomputed in a backward pass is edited again, or its gradients would be wrong.
        """
        if self._is_silent() or not self._run.is_attached:
            return None
        try:
            event = Event(phase, module, args, kwargs, output)
            return _instead(event, self._decision.edited(points, event, frame)) if not is_tracing() else None
        except Exception as error:
            self._fail(error)
        return None

    def _follower(self) -> Follower | None:
        """Who follows the forward that runs in this thread."""
        found = self._followers.get(get_ident())
        return found() if found is not None else None

    def _pass_silently(self, follower: Follower, event: Event, frame: FrameType) -> Any:
        """A call on the way to an earlier place: only what is noted of calls is noted."""
        if not self._run.is_attached or is_in_backward() or is_tracing():
            return None
        try:
            if self._sink.noting:
                values = event.output if event.phase is Phase.EXIT else (event.args, event.kwargs)
                self._backward_pass.note(event.phase, event.module, values, frame)
            if event.phase is Phase.EXIT:
                self._run.seen_calls.keep(event.module, event.args, event.kwargs, event.output)
            if follower.arrives(event):
                return _instead(event, self._stop_at(event, frame, None, ""))
        except Exception as error:
            self._fail(error)
        return None

    def _is_silent(self) -> bool:
        """Is this thread in an evaluation? One whose forward runs again is not: there the same edits act."""
        if not self._evaluating or get_ident() not in self._evaluating:
            return False
        follower = self._follower() if self._followers else None
        return follower is None or not follower.is_silent

    def _is_only_noted(self, event: Event, points: tuple[Point, ...], frame: FrameType) -> bool:
        """Note the call for those who follow it; is it only recomputed?"""
        phase, module = event.phase, event.module
        recomputed = is_in_backward()
        if phase is Phase.ENTER and not recomputed and id(module) in self.taps.roots:
            self._intake.count_tapped(module)
            for begins in self._instruments.at("begins"):
                begins(module, event.args, event.kwargs)
        if self._sink.noting:
            values = (event.args, event.kwargs) if phase is Phase.ENTER else event.output
            self._backward_pass.note(phase, module, values, frame)
        if recomputed and not self._run.config.recompute:
            for point in points:
                point.recomputed += 1
            return True
        for called in self._instruments.at("called"):
            called(phase, points, module, frame)
        return False

    def _consider(self, points: tuple[Point, ...], event: Event, frame: FrameType) -> Any:
        match = self._decision.ask(points, event, frame) if points else None
        trouble = match.trouble if match is not None else ""
        if match is not None and match.caught is not None:
            match, trouble = self._stop_elsewhere(match, match.caught)
        stepped = self._decision.has_arrived(event, frame) if self._sink.listening else False
        if (match is not None or stepped) and not is_tracing():
            return _instead(event, self._stop_at(event, frame, match, trouble))
        return None

    def _stop_elsewhere(self, match: Match, caught: Caught) -> tuple[Match | None, str]:
        """Stop where what was caught was made, if it says where; what is left to stop for at the event."""
        if caught.elsewhere is None:
            return match, caught.text
        with modes_off():
            failed = caught.elsewhere(self._standstill.stop)
        return (match, f"{caught.text}; {failed}") if failed else (None, "")

    def _stop_at(self, event: Event, frame: FrameType, match: Match | None, trouble: str) -> Event | None:
        for arriving in self._instruments.at("arriving"):
            arriving(event, frame)
        with self._standstill.pausing():
            self._run.models.refresh()
            self._run.seen_calls.trim()
            stack = build_stack(frame, self._run.models, event=event)
            if event.phase is Phase.EXIT and stack:
                stack[0].overwritten = self._overwritten_inputs.overwritten(event.module)
            return self._standstill.stop_in(stack, event, match, cause=AtModule(), trouble=trouble)

    def _entered(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module that may overwrite its inputs is called. Never raises: a bug of ours detaches."""
        if self._is_silent() or not self._run.is_attached:
            return
        try:
            limit = self._run.config.copy_input_bytes
            self._overwritten_inputs.note(module, args, kwargs, limit=limit)
        except Exception as error:
            self._fail(error)

    def _leaving(self, error: BaseException, points: tuple[Point, ...]) -> None:
        """An exception leaves a tapped module."""
        for leaving in self._instruments.at("leaving"):
            leaving(error, points)

    def _run_plain(self, module: nn.Module, plain: Callable[[], Any]) -> None:
        """Run the modules inside a fused layer, for their taps; the run has the kernel's result already."""
        kind, say_once = type(module).__name__, self._messages.say_once
        say_once(
            f"{kind} is one kernel: its modules are run as well, so that you can stop in them",
            "the run keeps the kernel's result; the last digits in these modules may differ",
        )
        streams, threads = RandomState(), OtherThreads()
        try:
            with users_modes_aside(), global_hooks_silent():  # the kernel calls none of the modules inside
                plain()
        except Exception as error:
            say_once(f"the modules in {kind} cannot be run: {first_line(error)}", "break at the layer itself")
        finally:
            if streams.changed() and not threads.have_run():
                streams.restore()


def _instead(event: Event, edited: Event | None) -> Any:
    """What a hook returns to torch, so that it goes on with other values."""
    if edited is None or edited is event:
        return None
    return edited.output if event.phase is Phase.EXIT else (edited.args, edited.kwargs)
