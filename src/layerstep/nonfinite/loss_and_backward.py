"""From the end of a forward to the optimizer's step: the loss, the gradients, the parameters.

There is a look before and after each backward pass. From the end of the model's forward to there, functions
are noted, because the user's lines cannot be run again.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from layerstep._torch import modes_off, node_number
from layerstep._torch.kernel_keys import run_kernel
from layerstep.calls.events import Event
from layerstep.calls.operations import place_of
from layerstep.nonfinite.bad_nodes import Ledger, Nodes, nodes_between
from layerstep.nonfinite.in_backward import NOT_REPRODUCIBLE, Passed, again_backward, origin_of_node
from layerstep.nonfinite.kernel_mode import KernelMode
from layerstep.nonfinite.live_check import LiveCheck
from layerstep.nonfinite.origin import Origin, Part
from layerstep.nonfinite.search import Search
from layerstep.rerun.other_ranks import about_gradients
from layerstep.rerun.whole_call import CallStart
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import Bad, count_bad, is_finite, not_finite
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

__all__ = ["LossAndBackward"]

FORWARDS = 4
"""How many forwards may wait for their backward; the beginning of each is kept."""
MOST_LOSS_NODES = 400
"""Of the graph between the model and the loss; a larger one is not watched as it runs."""


class LossAndBackward:
    """The part of a search that comes after the forward."""

    def __init__(self, search: Search, live_check: LiveCheck) -> None:
        self._search = search
        self._live_check = live_check
        self._session = search.session
        self._passed: deque[Passed] = deque()
        self._ledger: Ledger | None = None
        self._mode: KernelMode | None = None
        self._watching: list[Nodes] = []
        self._loss_nodes: Nodes | None = None
        self._has_told_of_scaler = False
        self._has_seen_gradients = False
        """After the last backward pass all gradients were finite."""

    # --- what is installed ---

    def listen(self, sides: set[str]) -> None:
        """Install what these sides need, and no more."""
        backward, training = self._session.run.backward_calls, self._session.run.training
        at_backward = bool(sides & {"backward", "forward"})
        backward.listen(backward.around, self._around_backward, at_backward)
        backward.listen(backward.nested, self._nested_backward, at_backward)
        training.listen(training.before, self._is_about_to_step, bool(sides))
        training.listen(training.after, self._stepped, "param" in sides)

    def clear(self) -> None:
        self.listen(set())
        self.begin()
        for passed in self._passed:
            passed.let_go()
        self._passed.clear()

    @property
    def is_noting(self) -> bool:
        return self._mode is not None and self._mode.is_open

    # --- between the forward and the backward ---

    def begin(self) -> None:
        """A forward begins: what was computed after the last one is forgotten."""
        self._close_ledger()
        self._ledger = None

    def wait(self, event: Event, snapshot: CallStart) -> None:
        """A forward has ended well: keep the gradient that arrives at its output, a second run needs it."""
        outputs = [t if t.requires_grad else None for t in tensors_of(event.output)]
        known = any(each.snapshot is snapshot for each in self._passed)
        if known or not torch.is_grad_enabled() or all(t is None for t in outputs):
            return
        passed = Passed(snapshot, {node_number(t.grad_fn) for t in outputs if t is not None and t.grad_fn})
        if len(self._passed) == FORWARDS:
            self._passed.popleft().let_go()
        self._passed.append(passed)
        for place, tensor in enumerate(outputs):
            if tensor is not None:
                hook = partial(self._arrive, passed, place)
                hook.__torch_unserializable__ = True  # type: ignore[attr-defined]
                passed.handles.append(tensor.register_hook(hook))
        self._ledger = Ledger()
        if self._mode is None or not self._mode.open():
            mode = KernelMode(self._note)  # the first, or the model runs in another thread now
            self._mode = mode if mode.open() else None

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._ledger is None or self._session.run.is_silent:
            return run_kernel(func, args, kwargs)
        return self._ledger.beside(func, args, kwargs)

    def _close_ledger(self) -> None:
        """Note no more; it is kept until the backward has been looked at."""
        if self._mode is not None:
            self._mode.close()

    # --- the backward ---

    def _around_backward(
        self, losses: list[Tensor], frame: FrameType
    ) -> contextlib.AbstractContextManager[None]:
        is_wanted = not self._session.run.is_silent and bool(self._search.active)
        return self._watched_backward(losses, frame) if is_wanted else contextlib.nullcontext()

    def _nested_backward(self, losses: list[Tensor], frame: FrameType) -> None:
        """A graph inside the graph: reentrant checkpointing."""
        for nodes in self._watching:
            nodes.watch(nodes_between((t.grad_fn for t in losses), (), most=MOST_LOSS_NODES) or ())

    @contextlib.contextmanager
    def _watched_backward(self, losses: list[Tensor], frame: FrameType) -> Iterator[None]:
        nodes = self._loss_nodes = Nodes(check=False)
        self._close_ledger()  # here, where all modes lie on the stack
        try:
            with self._safely():
                self._before_backward(losses, nodes, frame)
            with self._live_check.backward():
                yield
            with self._safely():
                self._after_backward(nodes, frame)
        finally:
            nodes.let_go()
            self._loss_nodes = None
            for passed in [each for each in self._passed if each.gradients]:
                passed.let_go()
                self._passed.remove(passed)
            if self._ledger is not None:
                self._ledger.entries.clear()  # with the tensors that they held

    def _arrive(self, passed: Passed, place: int, gradient: Tensor) -> None:
        """The gradient of an output: if it is finite, what the loss has done is of no more interest."""
        before = passed.gradients.get(place)
        passed.gradients[place] = gradient if before is None else before + gradient
        if not is_finite(gradient):
            passed.is_bad = True
        elif self._loss_nodes is not None:
            self._loss_nodes.drop()

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            with modes_off():
                yield
        except Exception as error:
            self._session.fail(error)

    def _before_backward(self, losses: list[Tensor], nodes: Nodes, frame: FrameType) -> None:
        bad = next((count_bad(each) for each in losses if not is_finite(each)), None)
        if bad is not None and _has_scaler():
            self._tell_of_scaler("the scaled loss is not finite")
        elif bad is not None and not self._search.has_told:
            self._search.tell(self._origin_in_loss(bad), bad, frame=frame, side="forward")
        bottoms = {number for passed in self._passed for number in passed.outputs}
        nodes.watch(nodes_between((t.grad_fn for t in losses), bottoms, most=MOST_LOSS_NODES) or ())

    def _tell_of_scaler(self, seen: str) -> None:
        if not self._has_told_of_scaler:
            self._has_told_of_scaler = True
            self._session.say(Notice(f"{seen}: a GradScaler is in use, and skips such steps"))

    def _origin_in_loss(self, bad: Bad) -> Origin:
        seen = f"the loss is {'nan' if bad.nan else 'inf'}"
        entry = self._ledger.culprit() if self._ledger is not None else None
        if entry is None:
            note = "the output of the model was finite; what was computed after it was not seen"
            if self._ledger is not None and not self._ledger.is_whole and self._ledger.entries:
                lines = {entry.place.name: None for entry in self._ledger.entries if entry.func is None}
                note = f"born in the loss, whose values were too many to hold: {', '.join([*lines][-4:])}"
            return Origin(Part.LOSS, seen, note=note)
        results = tensors_of(entry.result)
        operands = tensors_of((entry.args, entry.kwargs))
        return Origin(
            Part.LOSS,
            seen,
            op=entry.name,
            place=entry.place,
            bad=next((b for t in results if (b := count_bad(t)).any), Bad()),
            operands=tuple((f"operand {n}", t) for n, t in enumerate(operands)),
            results=tuple(("result", t) for t in results),
        )

    def _after_backward(self, nodes: Nodes, frame: FrameType) -> None:
        self._has_seen_gradients = False
        if self._search.has_told or not self._search.wants("backward"):
            return
        named = [(name, p.grad) for name, p in self._search.parameters() if p.grad is not None]
        wrong = not_finite(gradient for _, gradient in named)
        self._has_seen_gradients = not wrong
        if not wrong:
            return
        name, gradient = named[wrong[0]]
        bad = count_bad(gradient)
        seen = f"the gradient of {name} has {bad}{_and_others(wrong, 'gradient')}"
        if _has_scaler():
            self._tell_of_scaler(seen)
            return
        names = [named[index][0] for index in wrong]
        origin = self._origin_in_backward(nodes, seen)
        self._search.tell(origin, bad, frame=frame, side="backward", about=names)

    def _origin_in_backward(self, nodes: Nodes, seen: str) -> Origin:
        passed = [each for each in self._passed if each.gradients]
        forward = passed[-1].snapshot.forward if passed else 0
        if not passed or any(each.is_bad for each in passed):
            nodes.look()
            if (made := nodes.producer()) is not None:
                return origin_of_node(
                    self._session, made, self._ledger or Ledger(), seen=seen, forward=forward
                )
            return Origin(Part.BACKWARD, seen, forward=forward, note="it was born above the model's output")
        trouble = ""
        for each in reversed(passed):
            again, ledger, trouble = again_backward(self._session, each, watching=self._watching)
            if (made := again.producer()) is not None:
                return origin_of_node(self._session, made, ledger, seen=seen, forward=each.snapshot.forward)
        note = trouble or "no node made it: a hook on a parameter or a gradient did"
        if trouble in ("", NOT_REPRODUCIBLE) and (ranks := about_gradients(self._session)):
            return Origin(Part.BACKWARD, seen, forward=forward, note=ranks, is_from_ranks=True)
        return Origin(Part.BACKWARD, seen, forward=forward, note=note)

    # --- the optimizer ---

    def _is_about_to_step(self, stepped: Stepped) -> None:
        self._close_ledger()

    def _stepped(self, stepped: Stepped) -> None:
        if self._session.run.is_silent or self._search.has_told:
            return
        named = self._search.parameters()
        wrong = not_finite(parameter for _, parameter in named)
        if not wrong:
            return
        name, parameter = named[wrong[0]]
        bad, gradient = count_bad(parameter), parameter.grad
        ranks = about_gradients(self._session) if self._has_seen_gradients else ""
        frame = sys._getframe(1)
        origin = Origin(
            Part.STEP,
            f"{stepped.kind} has left {name} with {bad}{_and_others(wrong, 'parameter')}",
            op=f"{stepped.kind}.step",
            place=place_of(frame),
            bad=bad,
            results=((name, parameter), ("its gradient", gradient)),
            note=_about(gradient, ranks),
        )
        with modes_off():
            names = [named[index][0] for index in wrong]
            self._search.tell(origin, bad, frame=frame, side="param", about=names)


def _about(gradient: Tensor | None, ranks: str) -> str:
    if gradient is None:
        return "it has no gradient"
    bad = count_bad(gradient)
    if bad.any and ranks:  # it was looked at when the backward pass had ended
        return f"its gradient has {bad}: {ranks}"
    return f"its gradient has {bad}" if bad.any else "its gradient is finite: the step itself was too large"


def _and_others(wrong: list[int], word: str) -> str:
    return f", and {len(wrong) - 1} other {word}s are bad, too" if len(wrong) > 1 else ""


def _has_scaler() -> bool:
    """Is mixed precision at work, where an Inf in a gradient is expected now and then? Asked only then."""
    scalers = (each for each in gc.get_objects() if type(each).__name__ == "GradScaler")
    return any(isinstance(each, torch.amp.GradScaler) and each.is_enabled() for each in scalers)
