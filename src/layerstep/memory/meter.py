"""The meter of a session: measures the memory of training steps, from the next operation on.

A dispatch mode below all others sees what kernels return; a hook on each outermost module sees its inputs and
its output. What autograd holds is read from its graph when a backward pass begins and when a forward ends.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import current_node, is_in_backward, is_tracing
from layerstep._torch.dynamo import keep_dynamo_out
from layerstep._torch.graphs import backward_roots, graph_task
from layerstep._torch.guards import functions_off
from layerstep._torch.saved import memory_of
from layerstep.calls.events import Phase
from layerstep.calls.stack import call_depth
from layerstep.memory.hidden import Hidden
from layerstep.memory.ledger import MemoryLedger
from layerstep.memory.mode import AllocationMode
from layerstep.memory.owned import buffers_of, gradients_of, kept_by, parameters_of, states_of
from layerstep.memory.places import OpOwners
from layerstep.memory.step import MeasuredStep, Savings, close_step, sum_savings
from layerstep.memory.step_instrument import StepInstrument
from layerstep.tensors.autograd_graph import inner_tensors, walk
from layerstep.tensors.containers import with_attributes
from layerstep.tensors.observing import observing
from layerstep.training_steps.borders import Call, End
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Meter", "meter_of"]

SEEN = "; in inference_mode and in transforms of torch.func, only in calls of whole models"
KEPT = 64
"""Measured steps."""


def meter_of(session: Session) -> Meter:
    """The meter of a session; it is made when it is first asked for."""
    return session.instruments.get(Meter)


class Meter(StepInstrument):
    """Measures while it is on, and keeps the last steps."""

    command = "memory"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.steps: deque[MeasuredStep] = deque(maxlen=KEPT)
        self.left: int | None = None
        """How many steps to measure; None: all."""
        self._mode = AllocationMode(self._before_op, self._after_op, self._wrote, session.fail)
        self._ledger = MemoryLedger()
        self._places = OpOwners(session.run.models)
        self._hidden = Hidden()
        self._saved = Savings()
        self._task = -1
        self._batch: int | None = None
        self._forwards = 0
        self._counted = self._added = 0
        self._wanted: int | None = None
        self._waits = self._had_gradients = False
        self._is_stepping = False
        self._has_run_backward = self._reads_at_backward = False
        """Did the last step have a backward pass?

        Then the next has one too, and its beginning shows the whole graph.
        """

    def start(self, steps: int | None) -> None:
        """Measure from now on."""
        self.is_on, self.is_read, self.left, self._wanted = True, False, steps, steps
        self._counted, self._added, self._waits = 0, 0, False
        self._borders.start()
        pause = self._session.run.pause
        self._borders.is_torn = pause is not None and not pause.is_start
        self._ledger.close()
        self._ledger = MemoryLedger()
        self._begin()
        if self._session.run.is_attached:
            self.apply()

    # --- what is installed ---

    def apply(self) -> None:
        if not self.is_on:
            return
        self._taps.apply_to(self._roots(), Phase.ENTER, Phase.EXIT)
        self._listen(True)
        self._mode.is_on = True
        if not self._session.run.is_silent or self._session.run.pause is None:
            self._mode.push_below()

    def clear(self) -> None:
        """The session detaches. The last forward counts, though no other has begun after it."""
        if self.is_on and self._forwards and not self._borders.is_training and not self._waits:
            self._close_forward()
        self.stop()

    def unread(self) -> list[str]:
        return [] if self.is_read or not self.steps else ["memory"]

    def shortfall(self) -> str:
        """At the end of the run: say in a line which wanted steps did not come."""
        if not self.is_on or self.is_read:
            return ""
        done, word = self._added, self._borders.word
        done += bool(self._forwards) and not (self._borders.is_training or self._waits)
        if self._waits:
            return f"memory: no optimizer has stepped, so {done:,} {word}s are measured"
        if not done:
            return "memory: nothing is measured: the run ended before a step was complete"
        is_short = self._wanted is not None and done < self._wanted
        return f"memory: the run ended after {done:,} of {self._wanted:,} {word}s" if is_short else ""

    def cost(self) -> list[str]:
        """What is installed, in words."""
        if not self.is_on:
            return []
        return [f"a dispatch mode that notes what tensors are given memory: about 8 µs an op{SEEN}"]

    def _uninstall(self) -> None:
        self._mode.is_on = False
        self._taps.clear()
        self._listen(False)
        self._mode.pop()
        self._ledger.close()
        self._places.forget()

    def _roots(self) -> list[nn.Module]:
        """The outermost modules; for a compiled one its wrapper, whose hooks run outside dynamo."""
        models = self._session.run.models
        wrappers = [model.given for model in models if model.compiled and model.given is not model.root]
        return [*models.tappable, *(each for each in wrappers if each is not None)]

    def _listen(self, wanted: bool) -> None:
        training = self._session.run.training
        training.listen(training.before, self._before_step, wanted)
        training.listen(training.after, self._after_step, wanted)

    # --- what happens in a step ---

    def _begin(self) -> None:
        self._ledger.release()
        with observing():
            self._seed_models()
            self._ledger.seed(
                states_of(self._session.run.models, self._session.run.training), "optimizer state"
            )
        self._ledger.begin()
        self._places.forget()
        self._hidden.forget()
        self._saved, self._batch, self._forwards, self._is_used = Savings(), None, 0, False
        self._reads_at_backward, self._has_run_backward = self._has_run_backward, False

    def _seed_models(self) -> None:
        models = self._session.run.models
        self._ledger.seed(parameters_of(models), "parameters")
        self._ledger.seed(buffers_of(models), "buffers")
        self._ledger.seed(gradients_of(models), "gradients")

    def _report(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        if self._session.run.is_silent or is_in_backward() or is_tracing():
            return
        try:
            model = self._session.run.models.by_root(module)
            is_helper = model is not None and model.is_helper and model is not self._session.run.models.main
            if model is None or is_helper or call_depth(frame) > 1:
                return
            if phase is Phase.EXIT and model.compiled and model.root is not None:
                self._places.note(
                    self._session.run.models.path_of(model.root)
                )  # no operation inside was seen
            if phase is Phase.ENTER:
                self._enter(module, (args, kwargs))
                if self.is_on:
                    self._mode.push_for_call(frame, module)
            elif phase is Phase.EXIT and not self._reads_at_backward:
                with functions_off():
                    self._read_graph([t.grad_fn for t in inner_tensors(with_attributes(output))])
        except Exception as error:
            self._session.fail(error)

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        call = self._borders.called(module)
        if self._borders.is_new_unit:
            self._restart()
        if call is Call.FORWARD and self._forwards:
            self._close_forward()
        if not self.is_on:
            return
        if call is Call.ASIDE:
            self._is_used = True
        elif self._is_used and not self._forwards:
            self._is_used = False
            self._begin()  # a forward without gradients before it is not part of the training step
        if call is Call.ASIDE:
            if not self._forwards:
                self._begin()
            return
        if call is Call.FORWARD or self._borders.is_training:
            self._forwards += 1
        self._had_gradients = torch.is_grad_enabled()
        given = list(inner_tensors(inputs))
        with observing():
            self._seed_models()  # a model that is new
            self._ledger.seed((("", tensor) for tensor in given), "inputs", "forward")
            first = next((tensor for tensor in given if tensor.dim()), None)
            is_batch = first is not None and (first.dim() > 1 or not first.is_floating_point())
            self._batch = int(first.shape[0]) if first is not None and is_batch else None

    def _before_op(self) -> None:
        """A backward pass begins: before its first operation the whole graph is still there."""
        task = graph_task()
        if task != self._task:
            self._task = task
            if task != -1 and current_node() is not None and not self._session.run.is_silent:
                self._read_graph(backward_roots(sys._getframe(1)))
                self._has_run_backward = True

    def _after_op(self, tensor: Tensor, frame: FrameType) -> None:
        key, storage = memory_of(tensor)
        ledger = self._ledger
        if not key or self._session.run.is_silent or tensor.is_meta:
            return
        if ledger.knows(key):  # it wrote in place, or made a view: no memory, but maybe a node
            if not self._is_stepping and self._places.has_new_nodes:
                self._places.here(frame)
            return
        path, part = ("", "optimizer") if self._is_stepping else self._places.here(frame)
        size = storage.nbytes()
        if size:
            line = None if part == "backward" else frame  # there every line is backward()
            ledger.enter(storage, key, size=size, path=path, part=part, frame=line)

    def _wrote(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._session.run.is_silent:
            self._hidden.note(func, args, kwargs, ledger=self._ledger)

    def _read_graph(self, nodes: list[Any]) -> None:
        def met(tensor: Tensor, key: int) -> None:
            if not self._ledger.knows(key):  # made earlier, or in compiled or scripted code
                self._ledger.add(tensor, key, path="", part="forward")

        def hidden(number: int) -> list[tuple[int, int]] | None:
            return self._hidden.held_by(number, self._ledger)

        with observing():
            self._seed_models()  # a lazy layer has made its parameters meanwhile, a module its buffers
            saved = sum_savings(walk(nodes, met=met, hidden=hidden), self._ledger, self._places)
        if saved.bytes > self._saved.bytes or not self._saved.nodes:
            self._saved = saved

    def _restart(self) -> None:
        """Start again: what was measured so far were forwards before the training."""
        for _ in range(min(self._added, len(self.steps))):
            self.steps.pop()
        self.left, self._waits, self._counted, self._added = self._wanted, False, 0, 0

    def _close_forward(self) -> None:
        """A forward of the main model has ended, and nothing has been trained so far."""
        self._counted += 1
        self._borders.is_torn = self._had_gradients  # then the forward was part of a training step
        if self._waits:
            self._begin()
            return
        self._close(f"forward {self._counted}", may_wait=True)

    def _before_step(self, stepped: Stepped) -> None:
        self._is_stepping = True
        if self._borders.begin_training():
            self._restart()
        with observing():
            self._ledger.seed(gradients_of(self._session.run.models), "gradients")

    def _after_step(self, stepped: Stepped) -> None:
        self._is_stepping = False
        end = self._borders.stepped(stepped)
        if end is End.NONE:
            return
        with observing():
            self._ledger.seed(
                states_of(self._session.run.models, self._session.run.training), "optimizer state"
            )
        if end is End.WHOLE and (self._forwards or self._saved.nodes):
            self._close(f"step {stepped.steps}")
        elif self.is_on:
            self._begin()
        if self.is_on:
            self._mode.push_below()

    def _close(self, label: str, *, may_wait: bool = False) -> None:
        models = self._session.run.models
        with observing():
            kept = kept_by(models, self._session.run.training)
            step = close_step(self._ledger, self._saved, label=label, batch=self._batch)
        is_compiled = any(model.compiled for model in models)
        self.steps.append(replace(step, is_compiled=is_compiled, kept=kept, forwards=self._forwards))
        self._added += 1
        if self.left is not None:
            self.left -= 1
            if self.left <= 0 and not (may_wait and self._holds()):
                self.stop()
                self._session.say(Notice(f"memory is measured, up to {label}", "`memory` shows it"))
                return
        self._begin()

    def _holds(self) -> bool:
        """All wanted forwards are measured. Wait for training steps, which tell more, if some may come?"""
        main = self._session.run.models.main
        self._waits = main is None or main.is_helper or self._borders.may_train()
        if self._waits and main is not None and not main.is_helper:
            hint = "`memory` shows the forwards so far"
            self._session.say(Notice("memory: waiting for the optimizer's first step", hint))
        return self._waits


for _function in (Meter._before_op, Meter._after_op, Meter._wrote, Meter._report):
    keep_dynamo_out(_function, callees=True)
