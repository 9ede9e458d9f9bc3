"""Keeps at the entry of each forward what it takes to begin it again, while the run may stop in it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from layerstep._torch import is_in_backward, is_tracing
from layerstep._torch.collectives import collectives_so_far
from layerstep._torch.forward_swap import swap_forward
from layerstep.calls.events import Event, Phase
from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.points import Edit
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.stepper import Reach
from layerstep.errors import UserError
from layerstep.rerun.other_ranks import waits_for_ranks
from layerstep.rewind.goal import Goal
from layerstep.rewind.route import Place
from layerstep.rewind.running_forward import RunningForward
from layerstep.rewind.views import arrival
from layerstep.rewind.weights import WeightWriters
from layerstep.side_effects.guard import state_of
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Rewind", "go_back"]


_REPLAY = "`replay` runs one that is over again, on copies; `replay on` keeps what it needs"


class Rewind(Instrument):
    """Lets the forwards of a session begin again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._goal: tuple[Goal, Place | None] = (Goal(), None)
        self._notices: list[Notice] = []
        self._writers = WeightWriters()
        self._edits: set[int] = set()
        """The numbers of the edits in force when the forward began, or began again."""
        self._weight_edits = 0

    def begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.is_armed or is_tracing() or self._is_in_another():
            return
        self._edits = {point.number for point in self._session.points if isinstance(point, Edit)}
        self._weight_edits = self._session.run.weight_edits
        forward = RunningForward(self._session, module, self._writers, self._arrived)
        if swap_forward(sys._getframe(1), module, forward.around):
            followers, passed = self._session.run.followers, self._session.run.passed_calls
            thread = get_ident()

            def gone(ended: weakref.ref[RunningForward]) -> None:
                if followers.get(thread) is ended:
                    del followers[thread]
                    passed.pop(thread, None)

            followers[thread] = cast(Any, weakref.ref(forward, gone))
            passed[thread] = forward.route.passed

    def _is_in_another(self) -> bool:
        forward = self.forward_here()
        return forward is not None and forward.is_begun and not forward.is_over

    @property
    def is_armed(self) -> bool:
        """May the run stop in the next forward? Then what `back` needs is kept."""
        session = self._session
        if not session.run.config.back:
            return False
        intent = session.run.intent
        if intent.reach is not Reach.NOTHING or intent.kind.is_by_line:
            return True
        return any(point.enabled and point.stops for point in session.points)

    @property
    def wants_forwards(self) -> bool:
        """For stops at lines. A compiled model is left alone: the tap would make it run eagerly."""
        session = self._session
        return self.is_armed and not any(model.compiled for model in session.run.models)

    def forward_here(self) -> RunningForward | None:
        """The forward that runs in this thread, if it can begin again."""
        found = self._session.run.followers.get(get_ident())
        return cast(RunningForward | None, found() if found is not None else None)

    def _all(self) -> Iterator[RunningForward]:
        for found in list(self._session.run.followers.values()):
            if (forward := found()) is not None:
                yield cast(RunningForward, forward)

    def apply(self) -> None:
        run = self._session.run
        if run.pause is None and run.intent.kind is Kind.INTERRUPT:
            for forward in self._all():
                forward.route.is_counted = False

    def clear(self) -> None:
        for forward in self._all():
            forward.release()
        self._session.run.followers.clear()
        self._session.run.passed_calls.clear()

    def cost(self) -> list[str]:
        if not self.is_armed:
            return []
        size = max((f.snapshot.copied for f in self._all() if f.snapshot is not None), default=0)
        copies = f", {size:,} bytes in this one" if size else ""
        return [f"`back`: copies of inputs, buffers and random streams at the entry of each forward{copies}"]

    def arriving(self, event: Event, frame: FrameType) -> None:
        forward = self.forward_here()
        if forward is not None:
            forward.stops_at(event)

    def _arrived(self, forward: RunningForward) -> None:
        self._notices = arrival(forward)
        for came_back in self._session.instruments.at("came_back"):
            came_back()

    def stopped(self) -> list[Notice]:
        forward = self.forward_here()
        if forward is not None:
            forward.clock.stop()
            if (weights := forward.weights) is not None:
                weights.stopped()
        notices, self._notices = self._notices, []
        return notices

    def _written_by_lines(self) -> set[int]:
        """The ids of weights that lines of this pause have written, uncounted writes among them."""
        baseline = self._session.prompt.effects.baseline
        if baseline is None:
            return set()
        changed = set(baseline.state.changed())
        return {id(tensor) for name, tensor in state_of(self._session.run.models) if name in changed}

    def _changes_by_hand(self) -> str:
        """What lines of the user have changed since the last run of this forward began, in a word."""
        points = [point for point in self._session.points if isinstance(point, Edit) and point.enabled]
        before, writes = self._edits, self._weight_edits
        self._edits, self._weight_edits = {point.number for point in points}, self._session.run.weight_edits
        if before != self._edits:
            return "edits"
        return "weights" if writes != self._weight_edits or self._written_by_lines() else ""

    def aim(self, goal: Goal, place: Place | None) -> None:
        """Where the `Resume` that comes next goes back to."""
        self._goal = goal, place

    def resuming(self, pause: Pause, resume: Resume) -> None:
        forward = self.forward_here()
        if forward is not None:
            forward.clock.go_on()
            if (weights := forward.weights) is not None:
                weights.goes_on(self._written_by_lines())
            if pause.edited is not None:
                forward.went_on_with(pause.edited)
        if resume.kind is Kind.BACK and forward is not None:
            forward.changed_by = self._changes_by_hand()
            forward.leave_for(*self._goal)


def go_back(session: Session, goal: Goal) -> Resume:
    """Begin the forward again and stop at an earlier place; a `UserError` says why that cannot be."""
    pause = session.run.pause
    assert pause is not None
    rewind = session.instruments.get(Rewind)
    forward = _forward_at(session, pause, rewind)
    place = _place_of(pause, forward)
    if goal != Goal():
        if not forward.route.is_counted:
            raise UserError("Ctrl-C stopped between two modules, so this place was not counted", "`restart`")
        _check(forward, goal, place)
    trouble = forward.snapshot.why_not() if forward.snapshot is not None else "its entry was not seen"
    if trouble:
        raise UserError(f"the forward cannot begin again: {trouble}")
    rewind.aim(goal, place)
    return Resume(Kind.BACK)


def _forward_at(session: Session, pause: Pause, rewind: Rewind) -> RunningForward:
    is_backward = pause.phase is not None and pause.phase.is_backward
    if is_backward or is_in_backward():
        raise UserError("`back` goes back in a forward, and this is the backward pass", _REPLAY)
    forward = rewind.forward_here()
    modules = [frame.module for frame in pause.stack if frame.module is not None]
    if forward is None or not modules or modules[-1] is not forward.module:
        _refuse(session, pause)
    assert forward is not None
    if not forward.is_begun:
        raise UserError("this is the beginning of the forward")
    is_at_exit = pause.event is not None and pause.event.module is forward.module and forward.is_over
    if not is_at_exit and not forward.is_running_here():
        _refuse(session, pause)
    if is_at_exit and forward.has_other_hooks():
        raise UserError("this forward is over, and hooks of yours have got its result", _REPLAY)
    if kind := waits_for_ranks(forward.module):
        raise UserError(f"`back` on one rank alone: {kind} would wait for the other ranks")
    if collectives_so_far() != forward.collectives:
        raise UserError(
            "`back` on one rank alone: this forward has talked to other ranks, and would wait for them"
        )
    return forward


def _refuse(session: Session, pause: Pause) -> None:
    if not any(frame.module is not None for frame in pause.stack):
        raise UserError("no forward is running here", _REPLAY)
    if not session.run.config.back:
        raise UserError("nothing was kept at the entry of this forward", "`back on`, then the next forward")
    text = "nothing was kept at the entry of this forward: no point was set, or another thread began it"
    raise UserError(text, "the next one is kept if a point is set (`catch exception`, say) or one steps")


def _place_of(pause: Pause, forward: RunningForward) -> Place | None:
    """Where the run stands, if it is not at the entry or exit of a module."""
    if pause.phase in (Phase.ENTER, Phase.EXIT):
        return None
    modules = [frame.module for frame in pause.stack if frame.module is not None and frame.op is None]
    stack = tuple(id(module) for module in reversed(modules))
    return Place(stack, forward.clock.now, is_raised=pause.stop.error is not None)


def _check(forward: RunningForward, goal: Goal, place: Place | None) -> None:
    """Refuse what is known not to be there; the rest shows on the way."""
    here = forward.find_here() if place is None else None
    if here == 0:
        raise UserError("this is the beginning of the forward")
    if here is not None and goal.number(forward.boundaries, here) is None:
        raise UserError(f"{goal.name} was not called before here in this forward")
