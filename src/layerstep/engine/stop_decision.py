"""Decides at an event whether the run stops: by the points and their conditions, and by the step."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from layerstep._torch import is_in_backward, modes_off
from layerstep.calls.events import Event, Phase
from layerstep.calls.op_frame import op_frame
from layerstep.calls.stack import Frame, call_depth, is_deeper
from layerstep.engine import stepper
from layerstep.engine.messages import Messages
from layerstep.engine.point import Point
from layerstep.engine.points import Break, BreakAtOp, Catch, Edit, Log, Record
from layerstep.engine.resume import Kind
from layerstep.engine.run import Run
from layerstep.engine.stop import Match
from layerstep.errors import UserError, first_line, message_of
from layerstep.expressions.computing_calls import is_plain
from layerstep.expressions.expression import Expression
from layerstep.expressions.scope import Scope
from layerstep.process.frames import caller_of, forget_locals
from layerstep.process.interrupts import is_from_a_signal
from layerstep.side_effects.guard import own_saved_tensors, undisturbed
from layerstep.tensors.observing import observing
from layerstep.views import Notice, Text

__all__ = ["StopDecision"]


class StopDecision:
    """Asks points and counts their hits. The order is gdb's: condition, hit count, what is to be ignored."""

    def __init__(self, run: Run, messages: Messages) -> None:
        self._run = run
        self._messages = messages

    def worth_asking(
        self,
        points: tuple[Point, ...],
        phase: Phase,
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> tuple[Point, ...]:
        """The points to ask at this call; the others are counted here. Nothing is built for those.

        Three kinds need no more: a plain point whose hit is to be ignored, a recording, and a point whose
        condition only reads or computes from what the call is given, and does not hold. If it holds, or
        raises, `ask` evaluates it again.
        """
        left: tuple[Point, ...] = ()
        for point in points:
            condition = point.condition
            if point.is_shared or not point.enabled:
                left += (point,)
            elif point.ignore > 0 and condition is None and type(point) is Break:
                point.hits += 1  # asked first: what a class says is looked up more slowly
                point.ignore -= 1
            elif point.has_question:
                left += (point,)
            elif condition is None:
                if isinstance(point, Record) and self._records(point, module, output):
                    point.hits += 1
                else:
                    left += (point,)
            elif condition.needs is not None and self._fails(
                condition, phase, module, args, kwargs, output, frame
            ):
                point.tried += 1
            else:
                left += (point,)
        return left

    @staticmethod
    def _records(point: Record, module: Any, output: Any) -> bool:
        return point.at_exit is not None and not point.ignore and point.at_exit(module, output)

    def _fails(
        self,
        condition: Expression,
        phase: Phase,
        module: Any,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> bool:
        """Does a condition that only reads or computes from what is at hand say no?"""
        needs = condition.needs or frozenset[str]()
        names = {"inp": args[0] if len(args) == 1 else args, "kwargs": kwargs, "mod": module}
        if phase is Phase.EXIT:
            names["out"] = output
        if condition.may_act and not all(is_plain(names[name]) for name in needs if name in names):
            return False
        if not (needs <= names.keys() or self._add_names(names, needs, module, frame)):
            return False
        try:
            with self._run.evaluating(), modes_off():
                if not condition.may_act:
                    return not condition.evaluate(names)
                with own_saved_tensors():
                    return not condition.evaluate(names)
        except Exception as error:
            if is_from_a_signal(error):
                raise
            return False

    def _add_names(self, names: dict[str, Any], needs: Iterable[str], module: Any, frame: FrameType) -> bool:
        """Look up what else a condition reads. False where one must look at the program's frames for that."""
        run = self._run
        if "name" in needs:
            paths = run.models.paths_of(module)
            if len(paths) != 1:
                return False
            names["name"] = paths[0]
        if "step" in needs:
            names["step"] = run.training.count
        if "forward" in needs:
            owner = run.models.owner_of(module) or run.models.main
            names["forward"] = owner.forwards if owner is not None else 0
        if "torch" in needs:
            names["torch"] = torch
            return _means_torch(caller_of(frame))
        return True

    def ask(self, points: tuple[Point, ...], event: Event, frame: FrameType | None) -> Match | None:
        """The point that stops here; a second one that does is counted, too."""
        found = None
        for point in points:
            match = self._ask_one(point, event, frame)
            found = found if found is not None else match
        return found

    def edited(self, points: tuple[Point, ...], event: Event, frame: FrameType) -> Event:
        """The event as the edits at this call leave it. One that raises is reported and disabled."""
        for point in points:
            if not (isinstance(point, Edit) and point.enabled):
                continue
            place = self._place(event, frame)
            if not self._is_called_as(point, place):
                continue
            try:
                with modes_off(), self._run.evaluating(), undisturbed(self._run.models, deep=False):
                    event = self._changed(point, event, place) or event
            except Exception as error:
                if is_from_a_signal(error):
                    raise
                point.enabled = False
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                text = f"{point.label} failed: {kind}{first_line(error)}"
                self._messages.say(Notice(text, f"it is disabled; `enable {point.number}`", level="error"))
        return event

    def _changed(self, point: Edit, event: Event, place: Frame) -> Event | None:
        if point.condition is not None:
            point.tried += 1
            if not point.condition.evaluate(self._run.scope_at(place)):
                return None
        if is_in_backward():  # recomputed: what acted in the forward acts again, and is not counted
            return point.change(event, place)
        if point.ignore:
            point.ignore -= 1
            return None
        changed = point.change(event, place)
        point.hits += changed is not None
        return changed

    def meets(self, point: Point, place: Frame | None) -> Match | None:
        """What a point is about has happened, found by a feature: does it stop?"""
        if not point.enabled:
            return None
        if point.condition is None:
            return Match(point) if self._counts(point) else None
        with modes_off():
            return self._decide(point, self._run.scope_at(place), Match(point))

    def _ask_one(self, point: Point, event: Event, frame: FrameType | None) -> Match | None:
        if not point.enabled or (event.op is None and isinstance(point, BreakAtOp)):
            return None
        if point.is_plain:
            return Match(point) if self._counts(point) else None
        place = self._place(event, frame)
        if event.op is None and not self._is_called_as(point, place):
            return None
        with modes_off():
            match = Match(point)
            if isinstance(point, Catch):
                caught = point.check(event)
                if caught is None:
                    return None
                match = Match(point, caught=caught)
            scope = self._run.scope_at(place)
            try:
                return self._decide(point, scope, match)
            finally:
                if scope.has_looked and place.python is not None:
                    forget_locals(place.python)

    def _decide(self, point: Point, scope: Scope, match: Match) -> Match | None:
        if point.condition is not None:
            point.tried += 1
            holds, trouble = self._holds(point.condition, scope)
            if trouble:
                point.hits += 1
                return Match(point, trouble)
            if not holds:
                return None
        if not self._counts(point):
            return None
        if isinstance(point, Log):
            self._log(point, scope)
            return None
        if isinstance(point, Record):
            if scope.frame is not None:
                with self._run.evaluating(), observing():
                    point.action(scope.frame)
            return None
        return match

    @staticmethod
    def _counts(point: Point) -> bool:
        """One more hit; is it one to stop at?"""
        point.hits += 1
        if point.ignore > 0:
            point.ignore -= 1
            return False
        return True

    def _place(self, event: Event, frame: FrameType | None) -> Frame:
        models = self._run.models
        if event.op is not None:
            return op_frame(event, models)
        if event.call is not None:
            return Frame(models, event.module, state="backward done", call=event.call)
        if event.phase is Phase.LINE:
            place = Frame(models, None)
            place.within, place.at_line = frame, True
            return place
        caller = caller_of(frame) if frame is not None else None
        place = Frame(models, event.module, args=event.args, kwargs=event.kwargs, caller=caller)
        place.state = "entering"
        if event.phase is Phase.EXIT:
            place.state, place.output = "done", event.output
        return place

    @staticmethod
    def _is_called_as(point: Point, place: Frame) -> bool:
        """A module with two paths: is it called by the one that this point names?"""
        if not point.is_shared:
            return True
        return "|" in place.path or any(place.path == path for path, _ in point.targets)

    def _holds(self, condition: Expression, scope: Scope) -> tuple[bool, str]:
        try:
            with self._run.evaluating(), self._quietly(condition.may_act):
                return bool(condition.evaluate(scope)), ""
        except Exception as error:
            if _is_to_come(error, scope.frame):
                return False, ""
            text = f"condition {condition.text!r} raised {type(error).__name__}: {message_of(error)}"
            return False, text.partition("\n")[0]

    def _log(self, point: Log, scope: Scope) -> None:
        with self._run.evaluating(), self._quietly(point.template.may_act):
            text = point.template.format(scope)
        self._messages.say(Text(text), "log")

    def _quietly(self, may_act: bool) -> contextlib.AbstractContextManager[Any]:
        """A condition that only reads needs no guard; another could draw random numbers, say."""
        return undisturbed(self._run.models, deep=False) if may_act else contextlib.nullcontext()

    def goes_past(
        self, phase: Phase, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> bool:
        """Is the call deeper than where the step began, so that it cannot end it? Nothing is built for those.

        So are most calls on the way of a `next`.
        """
        run, intent = self._run, self._run.intent
        if intent.kind not in _BY_DEPTH or not is_deeper(frame, intent.depth):
            return False
        if phase is Phase.EXIT:
            run.seen_calls.keep(module, args, kwargs, output)
        return True

    def has_arrived(self, event: Event, frame: FrameType) -> bool:
        """Is this where the run was on its way to?"""
        run, intent = self._run, self._run.intent
        if event.phase is Phase.EXIT:
            run.seen_calls.keep(event.module, event.args, event.kwargs, event.output)
        is_root, forward = False, 0
        if intent.kind in (Kind.FORWARD, Kind.TRAINED):
            model = run.models.by_root(event.module)
            is_root, forward = model is not None and not model.is_helper, model.forwards if model else 0
        if intent.kind in _BY_DEPTH and is_deeper(frame, intent.depth):
            return False
        depth = call_depth(frame) if intent.needs_depth else 0
        moment = stepper.Moment(
            event.phase, threading.get_ident(), depth, is_root, forward, run.training.count
        )
        stop, after = stepper.decide(intent, moment)
        if run.intent is not intent:  # Ctrl-C has come meanwhile, or another thread has stopped for it
            return stop and intent.kind is not Kind.INTERRUPT
        if not (
            stop and intent.thread
        ):  # a thread keeps its step until it stands, or another would come first
            run.intent = after
        return stop


def _means_torch(caller: FrameType | None) -> bool:
    """Is `torch` torch itself where a module was called?"""
    if caller is None:
        return True
    code = caller.f_code
    local = "torch" in code.co_varnames or "torch" in code.co_cellvars or "torch" in code.co_freevars
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) or caller.f_locals is caller.f_globals
    return is_function and not local and caller.f_globals.get("torch", torch) is torch


_BY_DEPTH = (Kind.NEXT, Kind.FINISH)
"""Steps that no call ends that is deeper than where they began."""


def _is_to_come(error: Exception, frame: Frame | None) -> bool:
    """Is this a variable of the function that the line before its first assignment does not have yet?"""
    if not isinstance(error, NameError) or frame is None or not frame.at_line or frame.within is None:
        return False
    code = frame.within.f_code
    return error.name in (*code.co_varnames, *code.co_cellvars, *code.co_names)
