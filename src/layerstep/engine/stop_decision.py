"""Asks at an event whether the run stops: the points and their conditions, and the step that is under way."""

from __future__ import annotations

import contextlib
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from layerstep._torch import modes_off
from layerstep.engine import stepper
from layerstep.engine.events import Event, Kind, Phase
from layerstep.engine.expression import Expression
from layerstep.engine.guard import undisturbed
from layerstep.engine.op_frame import op_frame
from layerstep.engine.points import Point
from layerstep.engine.scope import Scope
from layerstep.engine.stack import Frame, call_depth, caller_of, forget_locals
from layerstep.tensors.observing import observing
from layerstep.views import Text

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Judge"]


class Judge:
    """Decides for a session. The order is gdb's: condition, then hit count, then what is to be ignored."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(
        self, points: tuple[Point, ...], event: Event, frame: FrameType | None
    ) -> tuple[Point | None, str]:
        """The point that stops here, and what went wrong with its condition."""
        hit, trouble = None, ""
        for point in points:
            stops, problem = self._ask_one(point, event, frame)
            if stops and hit is None:
                hit, trouble = point, problem
        return hit, trouble

    def _ask_one(self, point: Point, event: Event, frame: FrameType | None) -> tuple[bool, str]:
        if not point.enabled or (point.op and event.op is None):
            return False, ""
        if point.is_plain:
            return self._count(point), ""
        place = self._place(event, frame)
        if event.op is None and not self._is_called_as(point, place):
            return False, ""
        with modes_off():
            scope = self._session.scope_at(place)
            try:
                return self._decide(point, scope, event)
            finally:
                if scope.has_looked and place.python is not None:
                    forget_locals(place.python)

    def _decide(self, point: Point, scope: Scope, event: Event) -> tuple[bool, str]:
        if point.condition is not None:
            point.tried += 1
            holds, problem = self._holds(point.condition, scope)
            if problem:
                point.hits += 1
                return True, problem
            if not holds:
                return False, ""
        caught = ""
        if point.check is not None:
            caught = point.check(event)
            if not caught:
                return False, ""
        stops = self._count(point)
        if point.template is not None and stops:
            self._log(point, scope)
        if point.action is not None and stops and scope.frame is not None:
            with self._session.evaluating(), observing():
                point.action(scope.frame)
        return stops and point.template is None and point.action is None, caught

    @staticmethod
    def _count(point: Point) -> bool:
        point.hits += 1
        if point.ignore > 0:
            point.ignore -= 1
            return False
        return True

    def _place(self, event: Event, frame: FrameType | None) -> Frame:
        models = self._session.models
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
            with self._session.evaluating(), self._quietly(condition.may_act):
                return bool(condition.evaluate(scope)), ""
        except Exception as error:
            if _is_to_come(error, scope.frame):
                return False, ""
            text = f"condition {condition.text!r} raised {type(error).__name__}: {error}"
            return False, text.partition("\n")[0]

    def _log(self, point: Point, scope: Scope) -> None:
        assert point.template is not None
        with self._session.evaluating(), self._quietly(point.template.may_act):
            text = point.template.format(scope)
        self._session.say(Text(text), "log")

    def _quietly(self, may_act: bool) -> contextlib.AbstractContextManager[Any]:
        """A condition that only reads needs no guard; another could draw random numbers, say."""
        return undisturbed(self._session.models, deep=False) if may_act else contextlib.nullcontext()

    def has_arrived(self, event: Event, frame: FrameType) -> bool:
        """Is this where the run was on its way to?"""
        session, intent = self._session, self._session.intent
        if event.phase is Phase.EXIT:
            session.kept.keep(event.module, event.args, event.kwargs, event.output)
        is_root, forward = False, 0
        if intent.kind in (Kind.FORWARD, Kind.TRAINED):
            model = session.models.by_root(event.module)
            is_root, forward = model is not None and not model.is_helper, model.forwards if model else 0
        depth = call_depth(frame) if intent.needs_depth else 0
        moment = stepper.Moment(
            event.phase, threading.get_ident(), depth, is_root, forward, session.training.count
        )
        stop, after = stepper.decide(intent, moment)
        if session.intent is not intent:  # Ctrl-C has come meanwhile, or another thread has stopped for it
            return stop and intent.kind is not Kind.INTERRUPT
        if not (
            stop and intent.thread
        ):  # a thread keeps its step until it stands, or another would come first
            session.intent = after
        return stop


def _is_to_come(error: Exception, frame: Frame | None) -> bool:
    """Is this a variable of the function that the line before its first assignment does not have yet?"""
    if not isinstance(error, NameError) or frame is None or not frame.at_line or frame.within is None:
        return False
    code = frame.within.f_code
    return error.name in (*code.co_varnames, *code.co_cellvars, *code.co_names)
