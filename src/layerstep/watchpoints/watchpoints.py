"""Watchpoints: stop at the op and the line that write a tensor.

A dispatch mode below all others sees every kernel with its schema, which says what is written. What no kernel
writes (`.data =`, numpy, another thread, compiled code) is found by comparing with a copy: the place of the
memory before each op, the values at each forward, before and after each training step, and at each stop.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import is_tracing
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.modes import autograd_on
from layerstep.calls.events import Phase
from layerstep.calls.operations import name_of, place_of, user_frame
from layerstep.calls.stack import Frame, build_stack
from layerstep.engine.instrument import Instrument
from layerstep.engine.stop import Stop
from layerstep.errors import UserError
from layerstep.hooks.taps import Sink, Taps
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice
from layerstep.watchpoints.tensor_locator import find_home
from layerstep.watchpoints.views import Written
from layerstep.watchpoints.watchpoint import Watchpoint
from layerstep.watchpoints.write_event import UNSEEN, Write, write_to
from layerstep.watchpoints.write_mode import WriteMode, is_declared

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Watchpoints"]


class Watchpoints(Instrument):
    """The watchpoints of a session, and what is installed for them."""

    command = "watch --stop"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._mode = WriteMode(self._around, self._moved_before, session.fail)
        self._taps = Taps(Sink(self._forward_begins, _ignore, _ignore))
        self._hooks: dict[Watchpoint, Any] = {}
        self._is_armed = False

    @property
    def points(self) -> list[Watchpoint]:
        return [point for point in self._session.points if isinstance(point, Watchpoint)]

    @property
    def live(self) -> tuple[Watchpoint, ...]:
        """Those that are in effect."""
        return self._mode.points

    def apply(self) -> None:
        """Install what the watchpoints need and no more; where the run goes on, forgive what lines did."""
        try:
            self._apply(self._session)
        except Exception as error:
            self._session.fail(error)

    def _apply(self, session: Session) -> None:
        for point in self.points:
            if point.home is None:
                self._find(point)
        live = tuple(point for point in self.points if point.is_live)
        goes_on = session.run.pause is not None and not session.run.is_silent
        if goes_on or not self._is_armed:
            for point in live:
                point.look()
                point.looked_at = "the last stop" if goes_on else "the watch was set"
        self._is_armed = bool(self.points)
        self._mode.points = live
        self._listen(bool(live))
        self._hook(live)
        pause = session.run.pause
        if pause is None or pause.is_start:
            self._lay()

    def settle(self) -> None:
        # Not at the stop itself: modes are aside there, and a second one would lie below this after it.
        self._lay()

    def came_back(self) -> None:
        for point in self.live:
            point.look()
            point.looked_at = "the last stop"

    def clear(self) -> None:
        """Take everything off the run. Other threads' stacks cannot be reached: their next op cleans up."""
        self._is_armed = False
        self._mode.points = ()
        self._listen(False)
        self._hook(())
        self._mode.pop()

    def cost(self) -> list[str]:
        """What is installed, in words."""
        if not self.live:
            return []
        names = ", ".join(point.name for point in self.live[:3]) + ", …" * (len(self.live) > 3)
        where = "in inference_mode and in transforms of torch.func, only in calls of whole models"
        return [f"a dispatch mode that looks for writes to {names}: about 6 µs an op; {where}"]

    def _find(self, point: Watchpoint) -> None:
        """Look again for the tensor of a point that was set before there was a model."""
        try:
            point.settle(find_home(self._session, point.text))
        except UserError as error:
            point.trouble = error.message
        else:
            self._session.say(Notice(f"{point.label} is now set at {point.name}"))

    def _lay(self) -> None:
        """Put the mode on the stack of this thread, or take it off."""
        if self._mode.is_busy:
            return
        if self.live:
            self._mode.push_below()
        else:
            self._mode.pop()

    def _listen(self, wanted: bool) -> None:
        training = self._session.run.training
        training.listen(training.before, self._before_step, wanted)
        training.listen(training.after, self._after_step, wanted)
        self._taps.apply_to(self._session.run.models.tappable if wanted else [], Phase.ENTER)

    def _hook(self, live: Iterable[Watchpoint]) -> None:
        """A gradient that was None is given by no kernel: the parameter's own hook tells."""
        wanted = {
            point: parameter
            for point in live
            if point.home is not None
            and point.home.parameter is not None
            and (parameter := point.home.parameter()) is not None
            and parameter.requires_grad
        }
        for point in [point for point in self._hooks if point not in wanted]:
            self._hooks.pop(point).remove()
        for point, parameter in wanted.items():
            if point not in self._hooks:
                told = _Accumulated(self, point)
                self._hooks[point] = parameter.register_post_accumulate_grad_hook(told)

    def accumulated(self, point: Watchpoint) -> None:
        """A gradient was added to, or given for the first time."""
        if self._session.run.is_silent or point not in self.live:
            return
        try:
            if point.is_unreadable():
                self._tell_gone(point, "its gradient is sparse, which has no memory to compare")
            elif point.find_pointer() != point.pointer or point.compare()[2]:
                frame = sys._getframe(1)
                self._hold([write_to(point, "written", frame)], frame)
        except Exception as error:
            self._session.fail(error)

    def _before_step(self, stepped: Stepped) -> None:
        where = f"the start of {stepped.kind}.step() {stepped.steps + 1}"
        self._compare(where, sys._getframe(1), is_between=True)

    def _after_step(self, stepped: Stepped) -> None:
        self._compare(f"the end of {stepped.kind}.step() {stepped.steps}", sys._getframe(1), is_between=True)

    def _forward_begins(
        self,
        phase: Phase,
        points: Any,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> None:
        try:
            if self.live and not self._session.run.is_silent and not self._mode.is_busy and not is_tracing():
                self._mode.push_for_call(frame, module)
            self._compare("the forward", frame, is_between=False)
        except Exception as error:
            self._session.fail(error)

    def _compare(self, where: str, frame: FrameType, *, is_between: bool) -> None:
        """At a boundary: is every watched tensor what it was? Is the mode on in this thread?"""
        if self._session.run.is_silent or not self.live or is_tracing():
            return
        self._lay()
        here = f"{where} at {place_of(frame).name}"
        found = []
        for point in self.live:
            away = is_between and point.is_away()
            if away or point.find_pointer() != point.pointer:
                found.append(self._moved(point, frame, since=point.looked_at, to_seat=away))
            elif point.compare()[2]:
                found.append(write_to(point, "unseen", frame, since=point.looked_at))
            point.looked_at = here
        self._hold(found, frame)

    def _moved_before(self, point: Watchpoint) -> None:
        """Found before an op, so it was between the op before it and this one."""
        if self._session.run.is_silent or is_tracing():
            point.look()
            return
        frame = sys._getframe(1)
        with _above():
            since = self._mode.place_of_last()
            self._hold([self._moved(point, frame, since=since, to_seat=False)], frame)

    def _moved(self, point: Watchpoint, frame: FrameType, *, since: str, to_seat: bool) -> Write | None:
        """It was given other memory, another tensor took its place, or it is gone."""
        had_memory = point.pointer != 0
        if not point.follow(to_seat=to_seat):
            self._tell_gone(point, "nothing in Python holds its tensor any more")
            return None
        kind = "dropped" if not point.find_pointer() else "replaced" if had_memory else "given"
        return write_to(point, kind, frame, since=since)

    def _tell_gone(self, point: Watchpoint, reason: str) -> None:
        point.trouble = reason
        self._mode.points = tuple(each for each in self.live if each is not point)
        written = f"; the last write: {point.last}" if point.last else ""
        self._session.say(Notice(f"{point.label} at {point.name} ends", reason + written))

    def _around(self, func: Any, args: Any, kwargs: dict[str, Any], hits: list[Watchpoint]) -> Any:
        """Run a kernel that may write watched tensors, and stop if it did."""
        session, frame = self._session, sys._getframe(1)
        if session.run.is_silent or is_tracing():
            result = run_kernel(func, args, kwargs)
            for point in hits:
                point.look()
            return result
        try:
            changed = [point for point in hits if point.compare()[2]]
            writes = [write_to(point, "unseen", frame, since=point.looked_at) for point in changed]
            with _above():
                self._hold(writes, frame)
        except Exception as error:
            session.fail(error)
        result = run_kernel(func, args, kwargs)
        try:
            found = [self._settle(point, func, frame) for point in hits if point in self.live]
            with _above():
                self._hold(found, frame)
        except Exception as error:
            session.fail(error)
        return result

    @staticmethod
    def _settle(point: Watchpoint, func: Any, frame: FrameType) -> Write | None:
        """What a kernel that may have written a tensor did to it."""
        name = name_of(func)
        point.looked_at = f"{name} at {place_of(frame).name}"
        if point.find_pointer() != point.pointer:
            return write_to(point, "replaced", frame, op=name)
        if point.compare()[2] or (point.steps and is_declared(func)):
            return write_to(point, "written", frame, op=name)
        point.same += is_declared(func)
        return None

    def _hold(self, writes: Iterable[Write | None], frame: FrameType) -> None:
        """Stand still at each write, unless its watch was dropped at the one before."""
        for write in writes:
            if write is not None and write.point in self.live:
                self._stop(write, frame)

    def _stop(self, write: Write, frame: FrameType) -> None:
        session = self._session
        user = user_frame(frame)
        with session.standstill.pausing():
            session.run.models.refresh()
            stack = build_stack(frame, session.run.models, event=None)
            if stack:
                stack[0].caller = user
            else:
                stack = [Frame(session.run.models, None, caller=user)]
            match = session.decision.meets(write.point, stack[0])
            if match is not None:
                session.standstill.stop(
                    Stop(
                        Written(write),
                        stack,
                        point=write.point,
                        reason=write.point.label,
                        trouble=match.trouble,
                        python=user,
                    )
                )

    def stopped(self) -> list[Notice]:
        """What has changed since the last look, by nothing that torch saw."""
        found = []
        for point in self.live:
            if point.find_pointer() != point.pointer or point.compare()[2]:
                point.hits += 1
                point.last = f"unseen, after {point.looked_at}"
                text = f"{point.label}: {point.name} has changed since {point.looked_at}"
                found.append(Notice(text, UNSEEN, level="warn"))
                point.look()
            point.looked_at = "the last stop"
        return found


def _ignore(*_: Any) -> None:
    """What else a tap could report is of no interest here."""


def _above() -> contextlib.AbstractContextManager[None]:
    """Inside of a dispatch mode one is below autograd; at the prompt it is on, as outside."""
    return contextlib.nullcontext() if torch.is_inference_mode_enabled() else autograd_on()


class _Accumulated:
    """The hook on a parameter whose gradient is watched."""

    __slots__ = ("_point", "_writes")

    def __init__(self, writes: Watchpoints, point: Watchpoint) -> None:
        self._writes = writes
        self._point = point

    def __call__(self, parameter: Tensor) -> None:
        self._writes.accumulated(self._point)
