"""The doctor on a run: takes facts off it step by step, and asks the rules.

A step that is watched has taps on the outermost modules, and what happens at `backward()` and at the step of
the optimizer is noted: 0.2 ms in all. A step that is looked at also has taps on the layers, copies of the
parameters and a walk through the graph of the loss. In a rest only evaluations are noted. `Budget` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import is_in_backward, is_tracing
from layerstep._torch.guards import functions_off
from layerstep.calls.events import Phase
from layerstep.calls.stack import call_depth
from layerstep.doctor.budget import Attention, Budget, Level
from layerstep.doctor.calls import leaves_of
from layerstep.doctor.diagnosis import Diagnosis
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Finding
from layerstep.doctor.forwards import autocast_in_use
from layerstep.doctor.own_time import OwnTime, Piece
from layerstep.doctor.parts import Parts
from layerstep.doctor.rule import Rule, make_rules
from layerstep.doctor.source_of_loss import line_of, program_frame
from layerstep.doctor.views import finding_view
from layerstep.engine.instrument import Instrument
from layerstep.errors import message_of
from layerstep.hooks.taps import Sink, Taps
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.observing import observing
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Doctor", "doctor_of"]


def doctor_of(session: Session) -> Doctor:
    """The doctor of a session; it is made when it is first asked for."""
    return session.instruments.get(Doctor)


class Doctor(Parts, Instrument):
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
        self.diagnosis = Diagnosis(make_rules(self._tell), self.silenced, self._found, self._rule_failed)
        self.budget = Budget(self.level)
        self.make_parts(self.session)
        self._is_looking = self._was_looking = self._is_resting = False
        self._rests_until = 0
        """The number of the step, of all optimizers, that is the last of a rest."""
        self._is_quiet = False
        self._has_begun = False
        self._own = OwnTime(self.session.fail)
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
        self._listen(wanted=not self._is_resting)
        if not self._is_resting:
            self._look_next()

    def _listen(self, *, wanted: bool) -> None:
        backward, training = self.session.run.backward_calls, self.session.run.training
        backward.listen(backward.before, self._begins, wanted)
        backward.listen(backward.after, self._has_ended, wanted)
        training.listen(training.before, self._is_about_to_step, wanted)
        training.listen(training.after, self._stepped, wanted)
        training.call_at(self._rests_until if self.is_on and self._is_resting else 0, self._wake)

    def clear(self) -> None:
        """Called when the session detaches."""
        self.stop()

    def finish(self, *, quiet: bool = False) -> None:
        """The run is over: ask the rules for the last time. `quiet`: a report follows that shows all."""
        self._is_quiet = quiet
        if self.is_on:
            self._end_evaluation()
            self._look_at_the_unseen()
            self.optimizers.schedulers.tell(self.diagnosis.run)
            self.diagnosis.ended()

    def _look_at_the_unseen(self) -> None:
        """The run ends in a rest: have the steps since it began left parameters that are not finite?"""
        training = self.session.run.training
        if not self._is_resting:
            return
        with self._safely(), observing():
            step = self.optimizers.unseen_step(self.diagnosis.run, training.count)
            if step is not None:
                self.diagnosis.stepped(step)
        self.diagnosis.run.training_step = training.count

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        tried = self.diagnosis.run.sequence
        left = f"; how it treats tokens was not tried: {tried.skipped}" if tried and tried.skipped else ""
        return [f"doctor, {self.level}: {self.budget.words()}{left}"]

    @property
    def wants_ops(self) -> bool:
        return False

    # --- calls of models ---

    def _called(
        self, phase: Phase, points: Any, module: Any, args: Any, kwargs: Any, output: Any, frame: FrameType
    ) -> None:
        if self._is_resting and torch.is_grad_enabled() and not self.forwards.is_evaluating:
            return
        if self.session.run.is_silent or is_in_backward() or is_tracing() or call_depth(frame) != 1:
            return
        with self._safely():
            if phase is Phase.ENTER:
                self._entered(module, args, kwargs, frame)
            else:
                self._left(module, output)

    def _entered(self, module: nn.Module, args: Any, kwargs: Any, frame: FrameType) -> None:
        with_grad, autocast = torch.is_grad_enabled(), autocast_in_use()
        if self._is_resting and with_grad:
            self._end_evaluation()
            return
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
                self.activity.model_called(args, kwargs)
        self.evaluation_losses.module_begins()
        if call is None:
            return
        if call.with_grad:
            self._end_evaluation()
            self.forwards.add_to_step(call, module)
            self.origins.called(module, args, kwargs, autocast)
            if self._is_looking:
                step = self.session.run.training.count + 1
                with observing():
                    self.training_calls.begins(module, args, kwargs, step=step, autocast=autocast)
        elif self.optimizers.trains(module):
            line = line_of(program_frame(frame))
            overlap = None if self.forwards.is_evaluating else self.splits.evaluation()
            self.forwards.add_to_evaluation(call, self.count, line, overlap)
            is_compiled = any(model.compiled for model in self.session.run.models)
            self.evaluation_losses.listen(wanted=not is_compiled)

    def _left(self, module: nn.Module, output: Any) -> None:
        if not torch.is_grad_enabled():
            self._note_evaluation_loss(module, output)
            return
        if self._is_resting:
            return
        with functions_off():  # a mode of the program sees attributes, too
            made = next((each for each in tensors_of(output) if each.requires_grad), None)
        if made is not None:
            self.graphs.follow(made, self.count)
        if self._is_looking and self._is_model(module):
            with observing():
                self.forwards.returned(output)
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
        if self.by_hand.is_asked(self.session.run.training) and self.by_hand.begins():
            self._stepped_by_hand()
        with self._safely(), observing():
            self.optimizers.backward_begins(losses[0], frame, deep=self._is_looking)
            self.losses.begins(losses[0], program_frame(frame), deep=self._is_looking)
            self.graphs.follow(losses[0], self.count)

    def _has_ended(self, losses: list[Tensor], frame: FrameType) -> None:
        if not self.session.run.is_silent:
            with self._safely(), observing():
                self.optimizers.backward_ended(deep=self._is_looking)
                if self.by_hand.is_asked(self.session.run.training):
                    self._may_step_by_hand()

    # --- steps of optimizers ---

    def _may_step_by_hand(self) -> None:
        """A pass has ended, and no optimizer has ever stepped: keep what belongs to a step by hand."""
        self.by_hand.ended(self.optimizers.with_gradients)
        stepped = self.by_hand.stepped
        if stepped is not None:
            self._is_about_to_step(stepped)
            self.by_hand.keep(self.seen(stepped, shared=False), deep=self._is_looking)
            self._close_step()

    def _stepped_by_hand(self) -> None:
        stepped, taken = self.by_hand.stepped, self.by_hand.take()
        if stepped is not None and taken is not None:
            stepped.steps += 1
            seen, is_deep = taken
            if not self.by_hand.has_changed:
                self.optimizers.wake()  # gradients are added up for ever: that nothing steps is the fault
            with self._safely(), observing():
                self.make_step(stepped, seen, deep=is_deep, shared=False, seconds=0.0)

    def _is_about_to_step(self, stepped: Stepped) -> None:
        if self.session.run.is_silent or is_tracing():
            return
        with self._safely(), observing():
            if not self._has_begun:
                self._has_begun = True
                self.optimizers.begin(self.diagnosis.run)
                self.diagnosis.begins()
            self.optimizers.before_step(stepped, deep=self._is_deep(stepped))
            if self.optimizers.has_bad_gradients and self.losses.are_finite:
                self.optimizers.born = self.origins.in_backward() or self.optimizers.born

    def _stepped(self, stepped: Stepped) -> None:
        if self.session.run.is_silent or is_tracing():
            return
        is_shared = self.losses.are_shared(stepped.number)
        with self._safely(), observing():
            is_deep = self._is_deep(stepped)
            seen, seconds = self.seen(stepped, shared=is_shared), time.perf_counter() - self._since
            self.make_step(stepped, seen, deep=is_deep, shared=is_shared, seconds=seconds)
        if not is_shared:  # what the next forward gets is decided once for each backward pass
            self._close_step()

    def _is_deep(self, stepped: Stepped) -> bool:
        """Is this step looked at? Optimizers that step together are, or are not, together."""
        return self._was_looking if self.losses.are_shared(stepped.number) else self._is_looking

    def _close_step(self) -> None:
        now = time.perf_counter()
        self.budget.stepped(now - self._since, self._own.take(), was_look=self._is_looking)
        self._was_looking = self._is_looking
        self._since = now
        with self._safely():
            self._look_next()

    def _rest(self) -> None:
        self._is_resting = True
        self._rests_until = self.session.run.training.total + self.budget.rest
        self._listen(wanted=False)

    def _wake(self) -> None:
        now = time.perf_counter()
        self.budget.rested(now - self._since)
        self._since = now
        self._own.take()
        with self._safely():
            self._is_resting = False
            self._listen(wanted=True)
            self.optimizers.wake()
            self._look_next()

    def _look_next(self) -> None:
        """Decide about the step that begins now, and put taps on the layers if it is to be looked at."""
        attention = self.budget.next()
        self._is_looking = attention is Attention.LOOK
        if attention is Attention.REST and self.by_hand.stepped is None:  # it could not be woken
            self._rest()
        if not self._is_looking:
            self._layers.clear()
            self.training_calls.forget()
            return
        leaves, roots = leaves_of(self.session.run.models)
        self._paths = {id(module): path for path, module in leaves}
        self._layers.apply_to_leaves([module for _, module in leaves], roots)

    # --- what goes wrong with ourselves ---

    def _safely(self) -> Piece:
        return Piece(self._own)

    def _found(self, finding: Finding) -> None:
        if not self._is_quiet:
            self.session.say(finding_view(finding), "finding")
        for listener in list(self.listeners):
            listener(finding)

    def _rule_failed(self, rule: Rule, error: Exception) -> None:
        self._tell(f"the rule {rule.name} failed and is off: {type(error).__name__}: {message_of(error)}")

    def _tell(self, text: str) -> None:
        self.session.say(Notice(text[:300], level="warn"))


def _ignore(*_: Any) -> None:
    """Ignore the other reports of a tap."""
