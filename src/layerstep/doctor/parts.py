"""What the doctor is made of, and how a step of what its parts have seen comes about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from layerstep.doctor.activity import Activity
from layerstep.doctor.bad_origins import BadOrigins
from layerstep.doctor.budget import Budget
from layerstep.doctor.calls import Calls
from layerstep.doctor.diagnosis import Diagnosis
from layerstep.doctor.evaluation_losses import EvaluationLosses
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.forwards import Forwards
from layerstep.doctor.live_graphs import LiveGraphs
from layerstep.doctor.losses import Losses
from layerstep.doctor.optimizers import Optimizers
from layerstep.doctor.seen import Seen
from layerstep.doctor.splits import Splits
from layerstep.doctor.steps_by_hand import StepsByHand
from layerstep.doctor.training_calls import TrainingCalls
from layerstep.doctor.trials import Trials
from layerstep.training_steps.steps import Stepped

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Parts"]

LOOK_AT_LOADERS = 5


class Parts:
    """The parts of a doctor; they are made anew for each run that it watches."""

    session: Session
    diagnosis: Diagnosis
    budget: Budget
    steppers: list[Callable[[StepFacts], None]]

    def make_parts(self, session: Session) -> None:
        """Forget what was seen."""
        self.forwards = Forwards(session.run.models)
        self.optimizers = Optimizers(session)
        self.activity = Activity()
        self.calls = Calls()
        self.training_calls = TrainingCalls()
        self.origins = BadOrigins(session)
        self.losses = Losses(self.optimizers, self.forwards, self.training_calls, self.origins)
        self.evaluation_losses = EvaluationLosses(session.fail)
        self.graphs = LiveGraphs(session)
        self.trials = Trials(session)
        self.by_hand = StepsByHand()
        self.splits = Splits()

    def seen(self, stepped: Stepped, *, shared: bool) -> Seen:
        """What was seen since the step before."""
        is_own = partial(self.optimizers.has_part_of, stepped)
        return Seen(
            self.losses.take(stepped.number),
            self.forwards.take_step(is_own, again=shared),
            self.activity.take(),
            self.calls.take(),
            self.activity.take_inputs(),
        )

    def make_step(self, stepped: Stepped, seen: Seen, *, deep: bool, shared: bool, seconds: float) -> None:
        """The step is done: make facts of it, and ask the rules."""
        step = self.optimizers.after_step(
            stepped,
            seen,
            deep=deep,
            shared=shared,
            training_step=self.count,
            seconds=seconds,
            graphs=self.graphs,
            run=self.diagnosis.run,
        )
        if deep and not shared:
            number = self.budget.looks + 1
            self.trials.look(self.training_calls.last, number, self.diagnosis.run)
            if number == LOOK_AT_LOADERS:
                self.splits.training()
        self.diagnosis.stepped(step)
        labels = self.diagnosis.run.optimizer(stepped.number).labels
        self.losses.labels_are_alike = len(labels) == 1
        for stepper in self.steppers:
            stepper(step)

    @property
    def count(self) -> int:
        """Training steps so far."""
        return self.session.run.training.count or self.by_hand.steps
