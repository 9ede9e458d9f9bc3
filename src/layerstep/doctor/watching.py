"""The doctor on a run: takes facts off it step by step, and asks the rules.

Always on are taps on the outermost modules, a look at each `backward()` and at each step of an optimizer: a
few microseconds each. A step that is looked at also has taps on the layers, copies of the parameters and a
walk through the graph of the loss. `Budget` decides which steps those are.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import is_in_backward, is_tracing
from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Phase
from layerstep.calls.stack import call_depth
from layerstep.doctor.activity import Activity
from layerstep.doctor.bad_origins import BadOrigins
from layerstep.doctor.budget import Budget, Level
from layerstep.doctor.calls import Calls
from layerstep.doctor.diagnosis import Diagnosis
from layerstep.doctor.evaluation_losses import EvaluationLosses
from layerstep.doctor.facts import ForwardFacts, StepFacts
from layerstep.doctor.finding import Finding
from layerstep.doctor.forwards import Forwards, autocast_in_use
from layerstep.doctor.live_graphs import LiveGraphs
from layerstep.doctor.losses import Losses
from layerstep.doctor.optimizers import Optimizers
from layerstep.doctor.rule import Rule, make_rule
from layerstep.doctor.sequences import LOOKS_AT_TOKENS, has_padding, has_tokens, look_at_tokens
from layerstep.doctor.source_of_loss import line_of, program_frame
from layerstep.doctor.training_calls import TrainingCalls
from layerstep.doctor.views import finding_view
from layerstep.engine.instrument import Instrument
from layerstep.errors import message_of
from layerstep.hooks.taps import Sink, Taps
from layerstep.registry import all_rules
from layerstep.tensors.observing import observing
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Doctor", "doctor_of"]


def doctor_of(session: Session) -> Doctor:
    """The doctor of a session; it is made when it is first asked for."""
    return session.instruments.get(Doctor)


class Doctor(Instrument):
    """Watches the training of a session while it is on."""

    command = "doctor"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_on = self.was_on = False
        self.level = Level.BASIC
        self.silenced: set[str] = set()
        """The names of rules that are off."""
        self.listeners: list[Callable[[Finding], None]] = []
        """Told of each finding when it arises."""
        self.steppers: list[Callable[[StepFacts], None]] = []
        """Told of each step."""
        self._roots = Taps(Sink(self._called, _ignore, _ignore))
        self._roots.sink.listening = True
        self._layers = Taps(Sink(self._layer_called, _ignore, _ignore))
        self._layers.sink.listening = True
        self._start_anew()

    def _start_anew(self) -> None:
        self.diagnosis = Diagnosis(
            [make_rule(entry) for entry in all_rules()], self.silenced, self._found, self._rule_failed
        )
        self.budget = Budget(self.level)
        self.forwards = Forwards(self.session.run.models)
        self.optimizers = Optimizers(self.session)
        self.activity = Activity()
        self.calls = Calls()
        self.training_calls = TrainingCalls()
        self.origins = BadOrigins(self.session)
        self.losses = Losses(self.optimizers, self.forwards, self.training_calls, self.origins)
        self.evaluation_losses = EvaluationLosses(self.session.fail)
        self._calls: list[ForwardFacts] = []
        self._modules: list[weakref.ref[nn.Module]] = []
        """The models of these calls."""
        self.graphs = LiveGraphs(self.session)
        self._is_looking = False
        self._is_quiet = False
        self._has_begun = False
        self._own = 0.0
        self._since = time.perf_counter()
        self._paths: dict[int, str] = {}

    # --- on and off ---

    def start(self, level: Level | None = None) -> None:
        """Forget what was seen, and watch from the next step on; without a level, at the one that is set."""
        self.stop()
        self.level = level or self.level
        self._start_anew()
        self.is_on = self.was_on = True
        if self.session.run.is_attached:
            self.apply()

    @property
    def findings(self) -> list[Finding]:
        """Causes first, what each explains right behind it."""
        return self.diagnosis.findings

    def stop(self) -> None:
        """Take everything off the run; what was found is kept."""
        self.is_on = False
        self.evaluation_losses.listen(wanted=False)
        self._roots.clear()
        self._layers.clear()
        self._listen(wanted=False)

    def apply(self) -> None:
        """Called when the taps of the session are put on: a model may be new."""
        if not self.is_on:
            return
        self._roots.apply_to(self.session.run.models.tappable, Phase.ENTER, Phase.EXIT)
        self._listen(wanted=True)
        self._look_next()

    def _listen(self, *, wanted: bool) -> None:
        backward, training = self.session.run.backward_calls, self.session.run.training
        backward.listen(backward.before, self._begins, wanted)
        backward.listen(backward.after, self._has_ended, wanted)
        training.listen(training.before, self._is_about_to_step, wanted)
        training.listen(training.after, self._stepped, wanted)

    def clear(self) -> None:
        """Called when the session detaches."""
        self.stop()

    def finish(self, *, quiet: bool = False) -> None:
        """The run is over: ask the rules for the last time. `quiet`: a report follows that shows all."""
        self._is_quiet = quiet
        if self.is_on:
            self._end_evaluation()
            self.optimizers.schedulers.tell(self.diagnosis.run)
            self.diagnosis.ended()

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        share, every = self.budget.cost, self.budget.every
        often = "each step" if every == 1 else f"one step in {every}"
        tried = self.diagnosis.run.sequence
        left = f"; how it treats tokens was not tried: {tried.skipped}" if tried and tried.skipped else ""
        words = f"takes {share:.1%} of a step, may take {self.level.share:.0%}; looks at {often}{left}"
        return [f"doctor, {self.level}: {words}"]

    @property
    def wants_ops(self) -> bool:
        return False

    # --- calls of models ---

    def _called(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        if self.session.run.is_silent or is_in_backward() or is_tracing() or call_depth(frame) != 1:
            return
        with self._safely():
            if phase is Phase.ENTER:
                self._entered(module, args, kwargs, frame)
            else:
                self._left(module, output)

    def _entered(self, module: nn.Module, args: Any, kwargs: Any, frame: FrameType) -> None:
        with_grad, autocast = torch.is_grad_enabled(), autocast_in_use()
        with observing():
            call = self.forwards.begins(
                module,
                args,
                kwargs,
                deep=self._is_looking,
                with_grad=with_grad,
                autocast=next(iter(autocast.values()), None),
            )
            if self._is_looking:
                self.calls.model_called(args, kwargs, with_grad=with_grad)
        self.evaluation_losses.module_begins()
        if call is None:
            return
        if call.with_grad:
            self._end_evaluation()
            self._calls.append(call)
            self._modules.append(weakref.ref(module))
            self.origins.called(module, args, kwargs, autocast)
            if self._is_looking:
                step = self.session.run.training.count + 1
                with observing():
                    self.training_calls.begins(module, args, kwargs, step=step, autocast=autocast)
        elif self.optimizers.trains(module):
            line = line_of(program_frame(frame))
            self.forwards.add_to_evaluation(call, self.diagnosis.run.training_step, line)
            is_compiled = any(model.compiled for model in self.session.run.models)
            self.evaluation_losses.listen(wanted=not is_compiled)

    def _left(self, module: nn.Module, output: Any) -> None:
        if not torch.is_grad_enabled():
            self._note_evaluation_loss(module, output)
            return
        if is_tensor(output):
            self.graphs.follow(output, self.session.run.training.count)
        if self._is_looking and self._calls and self._is_model(module):
            with observing():
                self._calls[-1] = self.forwards.with_output(self._calls[-1], output)
                self.training_calls.ends(module, output)

    def _note_evaluation_loss(self, module: nn.Module, output: Any) -> None:
        """A loss that a model returns beside its output, or that a loss module returns."""
        if self.forwards.is_evaluating:
            model = self.session.run.models.by_root(module)
            given = output if model is not None and model.is_helper else getattr(output, "loss", None)
            with observing():
                self.evaluation_losses.module_gave(module, given)

    def _is_model(self, module: nn.Module) -> bool:
        model = self.session.run.models.by_root(module)
        return model is not None and not model.is_helper

    def _end_evaluation(self) -> None:
        evaluation = self.forwards.take_evaluation()
        if evaluation is not None:
            loss = self.evaluation_losses.take(self.diagnosis.run.criterion)
            self.evaluation_losses.listen(wanted=False)
            self.diagnosis.evaluated(replace(evaluation, loss=loss))

    def _layer_called(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        if self.session.run.is_silent or is_in_backward() or is_tracing():
            return
        path, has_grad = self._paths.get(id(module), ""), torch.is_grad_enabled()
        with self._safely(), observing():
            self.calls.note(path, args, kwargs, output, with_grad=has_grad)
            if has_grad:
                self.activity.note(path, module, args, output)

    # --- backward passes ---

    def _begins(self, losses: list[Tensor], frame: FrameType) -> None:
        if self.session.run.is_silent or not losses:
            return
        with self._safely(), observing():
            self.optimizers.backward_begins()
            self.losses.begins(losses[0], program_frame(frame), deep=self._is_looking)
            self.graphs.follow(losses[0], self.session.run.training.count)

    def _has_ended(self, losses: list[Tensor], frame: FrameType) -> None:
        if not self.session.run.is_silent:
            with self._safely(), observing():
                self.optimizers.backward_ended(deep=self._is_looking)

    # --- steps of optimizers ---

    def _is_about_to_step(self, stepped: Stepped) -> None:
        if self.session.run.is_silent or is_tracing():
            return
        with self._safely(), observing():
            if not self._has_begun:
                self._has_begun = True
                self.optimizers.begin(self.diagnosis.run)
                self.diagnosis.begins()
            self.optimizers.before_step(stepped, deep=self._is_looking)
            if self.optimizers.has_bad_gradients and self.losses.are_finite:
                self.optimizers.born = self.origins.in_backward() or self.optimizers.born

    def _stepped(self, stepped: Stepped) -> None:
        if self.session.run.is_silent or is_tracing():
            return
        with self._safely(), observing():
            step = self.optimizers.after_step(
                stepped,
                deep=self._is_looking,
                training_step=self.session.run.training.count,
                losses=self.losses.take(),
                forwards=self._own_calls(stepped),
                seconds=time.perf_counter() - self._since,
                activations=self.activity.take(),
                calls=self.calls.take(),
                run=self.diagnosis.run,
            )
            step = replace(
                step,
                layer_inputs=self.activity.take_inputs(),
                live_graphs=self.graphs.look(self.session.run.training.count),
                held_by=self.graphs.held_by,
            )
            self._calls, self._modules = [], []
            if self._is_looking:
                self._try_sequences()
            self.diagnosis.stepped(step)
            labels = self.diagnosis.run.optimizer(stepped.number).labels
            self.losses.labels_are_alike = len(labels) == 1
            for stepper in self.steppers:
                stepper(step)
        self._close_step()

    def _own_calls(self, stepped: Stepped) -> tuple[ForwardFacts, ...]:
        """The calls of the step. Whose model it is matters only where it is in evaluation mode."""
        found = []
        for call, reference in zip(self._calls, self._modules, strict=True):
            module = reference()
            is_own = call.is_training or (module is not None and self.optimizers.has_part_of(stepped, module))
            found.append(call if is_own else replace(call, is_own=False))
        return tuple(found)

    def _try_sequences(self) -> None:
        """In the third look, and once more if padding comes later: how the model treats tokens."""
        run, call = self.diagnosis.run, self.training_calls.last
        if call is None or call.reference() is None or self.budget.looks + 1 not in LOOKS_AT_TOKENS:
            return  # a model that is gone was made for one call: `net[:4](x)`
        if not has_tokens(call):
            return
        known = run.sequence
        if known is None or (not known.padding and not known.skipped and has_padding(call)):
            run.sequence = look_at_tokens(self.session, call)

    def _close_step(self) -> None:
        now = time.perf_counter()
        own, self._own = self._own, 0.0
        self.budget.stepped(now - self._since, own, was_look=self._is_looking)
        self._since = now
        with self._safely():
            self._look_next()

    def _look_next(self) -> None:
        """Decide about the step that begins now, and put taps on the layers if it is to be looked at."""
        self._is_looking = self.budget.wants_look()
        if not self._is_looking:
            self._layers.clear()
            self.training_calls.forget()
            return
        models = [model for model in self.session.run.models if not model.compiled]
        leaves = {
            id(module): (path, module)
            for model in models
            for path, module in ((self.session.run.models.full_path(model, p), m) for p, m in model.names)
            if next(module.children(), None) is None and not isinstance(module, nn.TransformerEncoderLayer)
        }
        self._paths = {key: path for key, (path, _) in leaves.items()}
        roots = [model.root for model in models if model.root is not None]
        self._layers.apply_to_leaves([module for _, module in leaves.values()], roots)

    # --- what goes wrong with ourselves ---

    def _safely(self) -> _Timed:
        return _Timed(self)

    def _found(self, finding: Finding) -> None:
        if not self._is_quiet:
            self.session.say(finding_view(finding), "finding")
        for listener in list(self.listeners):
            listener(finding)

    def _rule_failed(self, rule: Rule, error: Exception) -> None:
        text = f"the rule {rule.name} failed and is off: {type(error).__name__}: {message_of(error)}"
        self.session.say(Notice(text[:300], level="warn"))


class _Timed:
    """Takes the time of the doctor's own work. A bug in it detaches and lets the run go on."""

    __slots__ = ("_begun", "_doctor")

    def __init__(self, doctor: Doctor) -> None:
        self._doctor = doctor
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._doctor._own += time.perf_counter() - self._begun
        if isinstance(error, Exception):
            self._doctor.session.fail(error)
            return True
        return False


def _ignore(*_: Any) -> None:
    """Ignore the other reports of a tap."""
