"""The backward pass of a session: notes calls in the forward, asks points and the stepper in the backward."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import is_in_backward, is_wrapper, unwrap
from layerstep._torch.tensors import version_of
from layerstep.calls.backward import BEGAN_BEFORE, Backward, Call, Gradients, State
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import backward_stack
from layerstep.engine import stepper
from layerstep.engine.causes import InBackward
from layerstep.engine.point import Point
from layerstep.engine.resume import Kind
from layerstep.engine.run import Run
from layerstep.engine.standstill import Standstill
from layerstep.engine.stop_decision import StopDecision
from layerstep.process.frames import caller_of
from layerstep.tensors.containers import tensors_of
from layerstep.views import Notice

__all__ = ["BackwardPass"]

FORWARDS = 8
"""How many forwards may wait for their backward: accumulation, two encoders, a generator and a critic."""


class BackwardPass:
    """What a session knows of backward passes."""

    def __init__(
        self,
        run: Run,
        *,
        decision: StopDecision,
        standstill: Standstill,
        say: Callable[[Notice], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._run = run
        self._decision = decision
        self._standstill = standstill
        self._say = say
        self._fail = fail
        self._points: dict[int, tuple[Point, ...]] = {}
        """The points at the backward of each module, by its id."""
        self._is_stepped = False
        """Does a step go on, so that it must be asked at each call?"""
        self.graph = Backward(began=self._began, entered=self._entered, done=self._done, ended=self._ended)
        self._gradients: dict[int, tuple[int, int]] = {}
        self.passes = 0
        """Backward passes that were followed to their end."""
        self._stepped = False
        self._is_partial = False
        """The last stop was in a pass through a forward that was not followed from its beginning."""

    def arm(self, points: list[Point], *, is_stepped: bool) -> None:
        """Ask these points, and the step if there is one, from now on."""
        self._is_stepped = is_stepped
        self._points = {
            key: tuple(point for point in points if any(key == target for _, target in point.targets))
            for key in {key for point in points for _, key in point.targets}
        }

    def note(self, phase: Phase, module: nn.Module, values: Any, frame: FrameType) -> None:
        """A call begins or ends in a forward."""
        if is_wrapper(module):
            return
        if is_in_backward() and self._is_known(module):
            return  # recomputed for its values: the graph of the forward itself is the one that runs
        if phase is Phase.ENTER:
            owner = self._run.models.owner_of(module)
            self.graph.enter(module, tensors_of(values), forward=owner.forwards if owner is not None else 0)
        else:
            caller = caller_of(frame)
            made_at = (caller.f_code.co_filename, caller.f_lineno) if caller is not None else ("", 0)
            self.graph.leave(module, tensors_of(values), made_at=made_at)

    def _is_known(self, module: nn.Module) -> bool:
        return any(call.module is module and not call.unseen for call in self.graph.calls)

    def begin_forward(self) -> None:
        """A model is called: forwards that no backward goes through any more are forgotten."""
        self.graph.forget_before(FORWARDS)

    def why_unseen(self, module: nn.Module) -> str:
        """Why the backward pass was not seen at a module; empty if it was, or may still be."""
        calls = [call for call in self.graph.calls if call.module is module]
        if not calls:
            return self._why_not_called(module)
        if any(call.state is not State.WAITING for call in calls):
            return ""
        unseen = next((call.unseen for call in calls if call.unseen), "")
        if unseen or not self.passes:
            return unseen
        return "no gradient came: the loss does not depend on it, or its output, a view, was written to later"

    def _why_not_called(self, module: nn.Module) -> str:
        """A word if a forward of its model was noted at its beginning or at least at its end."""
        owner = self._run.models.owner_of(module)
        root = owner.root if owner is not None else None
        if root is None:
            return ""
        outermost = [call for call in self.graph.calls if call.module is unwrap(root)]
        if any(call.unseen != BEGAN_BEFORE for call in outermost):
            return "it was not called in the last forward"
        return "it was not called since the point was set" if outermost else ""

    def seen(self, module: nn.Module) -> int:
        """How many calls of a module the backward pass has gone through."""
        return sum(call.module is module and call.state is State.DONE for call in self.graph.calls)

    def is_ready(self, parameter: nn.Parameter) -> bool:
        """Has the running backward pass added to the gradient of this parameter?"""
        return _stamp(parameter) != self._gradients.get(id(parameter), _NONE)

    def open(self, call: Call) -> None:
        """Let `into` stop at the autograd nodes of a call."""
        self.graph.open(call, self._at_node)

    def _began(self) -> None:
        roots = [root for model in self._run.models if (root := model.root) is not None]
        self._gradients = {id(p): _stamp(p) for root in roots for p in root.parameters()}

    def _at_node(self, call: Call, name: str, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._run.is_silent or self._run.intent.kind is not Kind.INTO:
            return None
        edited = None
        try:
            if self._step(call, Phase.BACKWARD_ENTER):
                here = dataclasses.replace(call, grad_out=list(gradients), grad_in=[])
                stack = backward_stack(here, self._run.models, phase=Phase.BACKWARD_ENTER)
                stack[0].state = f"at {name}"
                with self._standstill.pausing():
                    event = Event(Phase.BACKWARD_ENTER, call.module, (), {}, gradients, call)
                    cause = InBackward(here, self.is_ready)
                    edited = self._standstill.stop_in(stack, event, None, cause=cause)
        except Exception as error:
            self._fail(error)
        return tuple(edited.output) if edited is not None else None

    def _entered(self, call: Call) -> Gradients | None:
        return self._consider(call, Phase.BACKWARD_ENTER)

    def _done(self, call: Call) -> Gradients | None:
        return self._consider(call, Phase.BACKWARD)

    def _consider(self, call: Call, phase: Phase) -> Gradients | None:
        """Stop at a call if a point or a step wants to; the gradients as the user has set them there."""
        points = self._points.get(id(call.module), ()) if phase is Phase.BACKWARD else ()
        if self._run.is_silent or not (points or self._is_stepped):
            return None
        edited = None
        try:
            event = Event(phase, call.module, (), {}, None, call)
            match = self._decision.ask(points, event, None) if points else None
            if (self._is_stepped and self._step(call, phase)) or match is not None:
                gradients = tuple(call.grad_in if phase is Phase.BACKWARD else call.grad_out)
                event = event._replace(output=gradients)
                with self._standstill.pausing():
                    stack = backward_stack(call, self._run.models, phase=phase)
                    cause = InBackward(call, self.is_ready)
                    edited = self._standstill.stop_in(stack, event, match, cause=cause)
                self._stepped = self._is_stepped
                outermost = list(call.stack())[-1]
                self._is_partial = self._run.models.by_root(outermost.module) is None
        except Exception as error:
            self._fail(error)
        return edited.output if edited is not None else None

    def _step(self, call: Call, phase: Phase) -> bool:
        intent = self._run.intent
        moment = stepper.Moment(phase, intent.thread or threading.get_ident(), call.depth)
        stop, self._run.intent = stepper.decide(intent, moment)
        return stop

    def _ended(self) -> None:
        self.passes += 1
        steps = (Kind.STEP, Kind.NEXT, Kind.INTO, Kind.FINISH, Kind.KERNEL)
        if self._stepped and self._run.intent.kind in steps:
            passed = "modules that were called before the point was set were passed over"
            self._say(Notice("the backward pass has ended", passed if self._is_partial else ""))
        self._stepped = False


_NONE = (0, 0)


def _stamp(parameter: nn.Parameter) -> tuple[int, int]:
    """What changes when something is added to a gradient: the tensor, or its count of writes."""
    gradient = parameter.grad
    return (id(gradient), version_of(gradient)) if gradient is not None else _NONE
