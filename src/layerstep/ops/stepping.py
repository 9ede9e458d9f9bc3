"""The op level of a session: stepping from operation to operation, and points at them.

A mode lies below the user's own only while it is needed: around the calls in which a point wants it, or from
the stop at which an op step begins. What is laid in a call that was entered through its hooks is taken out
when that call ends, by a `finally` around its forward (`swap_forward`), however it ends. Inside of its own
handler a mode cannot be taken out, torch puts it back: it is idle then, and goes at the next event or with
its call.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layerstep._torch import (
    at_end_of_backward,
    current_node,
    graph_task,
    is_in_backward,
    is_tracing,
    node_number,
    will_run,
)
from layerstep._torch.forward_swap import swap_forward
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.modes import autograd_on, is_on_stack, keeping_kernel
from layerstep._torch.persistent_mode import NO_BLOCKS, KeyBlocks, blocks_around
from layerstep.calls.backward import Call, State
from layerstep.calls.events import Event, Phase
from layerstep.calls.op_frame import node_name, op_frame, running_modules
from layerstep.calls.operations import Functions, Kernels, Op, matches, name_of, plain_name, user_frame
from layerstep.calls.stack import backward_stack, build_stack
from layerstep.engine import stepper
from layerstep.engine.instrument import Instrument
from layerstep.engine.point import Point
from layerstep.engine.points import BreakAtOp
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.stop import Match
from layerstep.ops.unseen import why_no_ops
from layerstep.ops.views import AfterOp
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.pause import Pause
    from layerstep.engine.session import Session

__all__ = ["OpSteps"]

Mode = Functions | Kernels
_LEVELS = (Phase.OP, Phase.KERNEL)
_STEPS = {Kind.OP: Phase.OP, Kind.KERNEL: Phase.KERNEL}


class _Here(threading.local):
    """The modes of ours that lie in a thread, by level."""

    def __init__(self) -> None:
        self.laid: dict[Phase, Mode] = {}
        self.passes: dict[Phase, int] = {}
        """The backward pass in which each was laid, -1 outside of any."""
        self.guards: list[KeyBlocks] = []
        """The key blocks around each running call that pops at its end what was pushed in it."""
        self.is_entering = False
        """Does the run stand at an entry whose end is guarded?"""


class OpSteps(Instrument):
    """Steps and points at operations, for a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._here = _Here()
        self._points: tuple[BreakAtOp, ...] = ()
        self._asks = (False, False)
        """May an op, or an aten op, end the step that is under way?"""
        self._wanted_by: dict[Phase, dict[Any, tuple[BreakAtOp, ...]]] = {level: {} for level in _LEVELS}
        """The points that the name of each function meets; a function that is not in it was not seen yet."""
        self.names: dict[Phase, dict[str, None]] = {level: {} for level in _LEVELS}
        """The names that were seen while something asked for ops, in the order of their first call."""
        self._followed = -1
        self._stepped_into: nn.Module | None = None
        """The module at whose entry an op step began, until the first op is seen."""

    def cost(self) -> list[str]:
        if not (self.wants_ops or self.lying):
            return []
        where = ", ".join(self.lying) or "in the calls that points at ops name"
        return [f"op modes, {where}: about 2.5 µs an op, 6 an aten op"]

    @property
    def has_modes(self) -> bool:
        return self.is_laid

    @property
    def is_laid(self) -> bool:
        """Was a mode laid outside of a call that takes it out? Then every event looks after it."""
        return self._session.installation.sink.lies_open

    @is_laid.setter
    def is_laid(self, is_laid: bool) -> None:
        self._session.installation.sink.lies_open = is_laid

    @property
    def wants_ops(self) -> bool:
        """Does a point or a step ask for ops now?"""
        return bool(self._points) or self._session.run.intent.kind in _STEPS

    @property
    def lying(self) -> list[Phase]:
        """The levels whose mode lies in this thread."""
        return list(self._here.laid)

    def prepare(self) -> None:
        """Take note of the points as they are now."""
        self._points = tuple(
            point
            for point in self._session.points
            if isinstance(point, BreakAtOp) and point.enabled and not point.is_pending
        )
        self._wanted_by = {level: {} for level in _LEVELS}
        kind = self._session.run.intent.kind  # Ctrl-C stops at the next op, where ops are seen
        self._asks = (kind in (Kind.OP, Kind.INTERRUPT), kind in (Kind.KERNEL, Kind.INTERRUPT))

    def clear(self) -> None:
        """Take out of this thread what can be, and leave the rest idle."""
        self._points, self._asks = (), (False, False)
        self._wanted_by = {level: {} for level in _LEVELS}
        self.settle()

    # --- where a mode lies ---

    def called(self, phase: Phase, points: tuple[Point, ...], module: nn.Module, frame: FrameType) -> None:
        if self.is_laid:
            self.sweep(frame)
        if phase is Phase.ENTER and (self.wants_ops or id(module) in self._session.installation.taps.roots):
            self.entered(points, module, frame)

    def entered(self, points: tuple[Point, ...], module: nn.Module, frame: FrameType) -> bool:
        """A call begins: its points take effect in it, and what is laid from now on ends with it. Can it?"""
        if is_tracing():
            return False
        here, around = self._here, blocks_around(frame)
        before = set(here.laid)
        at_ops = [point for point in points if isinstance(point, BreakAtOp)]
        asked = [point for point in at_ops if self._is_inside(point, [module])]

        def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
            def forward_with_ops(*args: Any, **kwargs: Any) -> Any:
                here.guards.append(around)
                self._lay(self._levels_of(asked))
                try:
                    # The call read its forward before a mode was laid at its entry: too late for a stand-in.
                    return keeping_kernel(module, forward)(*args, **kwargs)
                finally:
                    here.guards.pop()
                    self._take_out(set(here.laid) - before)

            return forward_with_ops

        is_guarded = swap_forward(frame, module, wrap)
        if asked and not is_guarded:
            levels = self._levels_of(asked)
            self._lay(levels if around == NO_BLOCKS else levels - {Phase.KERNEL})
            self.is_laid = bool(here.laid)
        return is_guarded

    def _levels_of(self, points: list[BreakAtOp]) -> set[Phase]:
        """Of those that are still set: at the entry the user may have taken them back."""
        return {point.level for point in points if point in self._points}

    def resuming(self, pause: Pause, resume: Resume) -> None:
        event = pause.event
        into = resume.kind in _STEPS and event is not None and event.phase is Phase.ENTER
        self._stepped_into = event.module if into and event is not None else None
        if resume.kind is Kind.KERNEL and event is not None and event.call is not None:
            self.follow(event.call)

    def arriving(self, event: Event, frame: FrameType) -> None:
        if event.phase is Phase.ENTER:
            self._here.is_entering = self.entered((), event.module, frame)
        elif self._stepped_into is not None and self._stepped_into is event.module:
            path = self._session.run.models.path_of(self._stepped_into)
            self._session.say(Notice(f"no op was seen in {path}", why_no_ops(self._stepped_into)))
        self._stepped_into = None

    def settle(self) -> None:
        """After a stop: lay in this thread what is wanted from here on, take out what is not and may be."""
        self.sweep(sys._getframe(1))
        new = self._wanted_here() - set(self._here.laid)
        if Phase.KERNEL in new and not self._may_lay_kernels():
            new.discard(Phase.KERNEL)
        self._lay(new)
        self.is_laid = bool(self._here.laid)
        self._here.is_entering = False

    def sweep(self, frame: FrameType) -> None:
        """At an event: take out what is not wanted any more and may be.

        A dispatch mode leaves only where no key block is around (`_torch/persistent_mode`); else it is idle
        until its call ends. At the end of a node of the backward pass torch puts back what lay before it: so
        what was laid before a backward pass does not leave in it.
        """
        if not is_in_backward():
            for ended in {self._here.passes[level] for level in self._here.laid} - {-1}:
                self._forget(ended)  # that pass has raised: torch did not tell of its end
        idle = {level for level in set(self._here.laid) - self._wanted_here() if self._is_of_this_pass(level)}
        if not is_in_backward() and blocks_around(frame) != NO_BLOCKS:
            idle.discard(Phase.KERNEL)
        self._take_out(idle)
        was_laid, self.is_laid = self.is_laid, bool(self._here.laid)
        if was_laid and not self.is_laid and self._session.run.pause is None:
            self._session.rearm()  # the taps that waited for this are not needed any more

    def _may_lay_kernels(self) -> bool:
        """Is no key block around, or does a call that began in the same blocks pop the mode again?"""
        here = self._here
        around = here.guards[-1] if here.guards else NO_BLOCKS
        if here.is_entering or is_in_backward() or blocks_around(sys._getframe()) == around:
            return True
        text = "aten ops cannot be followed from here, in inference_mode, a transform or compiled code"
        self._session.say(Notice(text, "`step op` can; or `into` a module, then `stepi`"))
        return False

    def _wanted_here(self) -> set[Phase]:
        session = self._session
        if not session.run.is_attached:
            return set()
        wanted = {_STEPS[session.run.intent.kind]} if session.run.intent.kind in _STEPS else set()
        if self._points:
            running = running_modules(sys._getframe(1))
            wanted |= {point.level for point in self._points if self._is_inside(point, running)}
        return wanted

    def _lay(self, levels: set[Phase]) -> None:
        for level in levels - set(self._here.laid) if levels else ():
            mode: Mode = Functions(self._function) if level is Phase.OP else Kernels(self._kernel)
            if mode.push_here():
                self._here.laid[level] = mode
                self._here.passes[level] = graph_task()
                if is_in_backward():
                    at_end_of_backward(functools.partial(self._forget, graph_task()))

    def _is_of_this_pass(self, level: Phase) -> bool:
        """Was a mode laid in the backward pass that runs now, or both outside of any?"""
        return not is_in_backward() or self._here.passes.get(level) == graph_task()

    def _take_out(self, levels: set[Phase]) -> None:
        for level in levels:
            if self._here.laid[level].pop_here():
                del self._here.laid[level]

    def follow(self, call: Call) -> None:
        """Lay the mode in each node of the backward pass: what is laid in one, torch drops at its end."""
        root = list(call.stack())[-1]
        if self._followed == root.task:
            return
        self._followed = root.task
        for node in [node for node in root.seen if will_run(node)]:
            root.handles.append(node.register_prehook(self._at_node))

    def _at_node(self, gradients: Any) -> None:
        if self._session.run.is_attached and self._session.run.intent.kind is Kind.KERNEL:
            mode = self._here.laid.get(Phase.KERNEL)
            if mode is None or not is_on_stack(mode):
                self._forget(graph_task())
                self._lay({Phase.KERNEL})

    def _forget(self, backward_pass: int) -> None:
        """Torch has dropped what was laid in the nodes of a backward pass."""
        for level in [each for each in self._here.laid if self._here.passes[each] == backward_pass]:
            self._here.laid.pop(level).forget()

    # --- what is seen through it ---

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        points = self._wanted_by[Phase.OP].get(func)
        if points is None:
            points = self._look_up(Phase.OP, func)
        if points or self._asks[0]:
            self._consider(Phase.OP, Op(func, args, kwargs, result), points, sys._getframe(1))
        return result

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_kernel(func, args, kwargs)
        points = self._wanted_by[Phase.KERNEL].get(func)
        if points is None:
            points = self._look_up(Phase.KERNEL, func)
        if points or self._asks[1]:
            self._consider(Phase.KERNEL, Op(func, args, kwargs, result), points, sys._getframe(1))
        return result

    def _look_up(self, level: Phase, func: Any) -> tuple[BreakAtOp, ...]:
        name = name_of(func)
        self.names[level].setdefault(plain_name(name))
        found = tuple(p for p in self._points if p.level is level and matches(p.op, name))
        self._wanted_by[level][func] = found
        return found

    def _consider(self, level: Phase, op: Op, points: tuple[BreakAtOp, ...], frame: FrameType) -> None:
        """Never raises but to quit: a bug of ours detaches and lets the run go on."""
        session = self._session
        if session.run.is_silent or not session.run.is_attached or is_tracing():
            return
        try:
            running = running_modules(frame)
            in_backward = is_in_backward()
            if in_backward and not session.run.config.recompute:
                for point in points:
                    point.recomputed += 1
                points = ()
            points = tuple(point for point in points if self._is_inside(point, running))
            call = self._call_in_backward() if in_backward and level is Phase.KERNEL else None
            module = running[0] if running else call.module if call is not None else None
            if module is None:
                return
            intent = session.run.intent
            op = op._replace(caller=user_frame(frame), node=node_name() if in_backward else "")
            if _STEPS.get(intent.kind) is level:
                self._stepped_into = None
            stepped = self._has_arrived(level, len(running))
            if stepped or (intent.kind in _STEPS and points):
                op = op._replace(within=intent.depth)
            where = None if running else call
            event = Event(level, module, op.args, op.kwargs, op.result, call=where, op=op)
            with _above(level):
                match = session.decision.ask(points, event, frame) if points else None
            if match is not None or stepped:
                with session.standstill.pausing(), _above(level):
                    self._stop(event, frame, match)
        except Exception as error:
            session.fail(error)

    def _has_arrived(self, level: Phase, depth: int) -> bool:
        session = self._session
        intent = session.run.intent
        if _STEPS.get(intent.kind) is not level and intent.kind is not Kind.INTERRUPT:
            return False
        stop, after = stepper.decide(intent, stepper.Moment(level, threading.get_ident(), depth))
        is_kept = stop and intent.thread  # by the thread, until it stands at the prompt
        if session.run.intent is intent and not is_kept:  # else Ctrl-C has come meanwhile
            session.run.intent = after
        return stop

    def _is_inside(self, point: BreakAtOp, running: list[nn.Module]) -> bool:
        """Is one of these calls the one that a point is about: of its WHERE, or of any model?"""
        if point.where is None:
            return any(self._session.run.models.owner_of(module) is not None for module in running)
        keys = {key for _, key in point.targets}
        return any(id(module) in keys for module in running)

    def _call_in_backward(self) -> Call | None:
        """The innermost call that the running autograd node was made in."""
        node = current_node()
        calls = [call for call in self._session.backward_pass.graph.calls if call.state is State.ENTERED]
        if node is None or not calls:
            return None
        number = node_number(node)
        inside = [call for call in calls if call.start <= number < (call.end or number + 1)]
        return max(inside or calls, key=lambda call: call.depth if inside else -call.depth)

    def _stop(self, event: Event, frame: FrameType, match: Match | None) -> None:
        session = self._session
        session.run.models.refresh()
        session.run.seen_calls.trim()
        if event.call is None:
            modules = build_stack(frame, session.run.models, event=None)
        else:
            modules = backward_stack(event.call, session.run.models, phase=Phase.BACKWARD_ENTER)
        depth = modules[0].depth + 1 if modules else 1
        stack = [op_frame(event, session.run.models, depth=depth), *modules]
        session.standstill.stop_in(stack, event, match, cause=AfterOp())


def _above(level: Phase) -> contextlib.AbstractContextManager[Any]:
    """A kernel runs below autograd; what the user types there is recorded as anywhere else."""
    if level is Phase.KERNEL and not torch.is_inference_mode_enabled():
        return autograd_on()
    return contextlib.nullcontext()
