"""What is known about a whole run: its parameters, optimizers, series and evaluations."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from layerstep.doctor.facts import (
    CriterionFacts,
    EvaluationFacts,
    LossFacts,
    ParameterFacts,
    SchedulerFacts,
    StepFacts,
)
from layerstep.doctor.finding import Place
from layerstep.doctor.samples import Samples
from layerstep.doctor.sequence_facts import SampleFacts, SequenceFacts
from layerstep.doctor.series import Series

__all__ = ["OptimizerRun", "RunFacts", "Task"]

LABELS = 4096
"""Different class labels that are counted."""
EVALUATIONS = 512
ROWS = 16_384
"""Samples that are remembered."""


@dataclass(slots=True)
class Task:
    """The targets of one loss function of the loss, over the steps that were looked at."""

    criterion: CriterionFacts
    """As it was in the last of them."""
    labels: Counter[int] = field(default_factory=Counter)
    """How often each class label came."""
    mean: Series = field(default_factory=Series)
    std: Series = field(default_factory=Series)
    guess: Series = field(default_factory=Series)
    floor: Series = field(default_factory=Series)
    """Of targets that are no class labels; the least loss that they allow."""

    def add(self, step: int, criterion: CriterionFacts) -> None:
        """Take in the targets of a step."""
        self.criterion, target = criterion, criterion.target
        if target is None:
            return
        if target.counts:
            if len(self.labels) < LABELS:
                self.labels.update(target.counts)
            return
        self.mean.add(step, target.mean)
        self.std.add(step, target.std)
        self.guess.add(step, target.guess)
        self.floor.add(step, target.floor)


@dataclass(slots=True)
class OptimizerRun:
    """The series of one optimizer."""

    number: int
    kind: str
    loss: Series = field(default_factory=Series)
    grad_norm: Series = field(default_factory=Series)
    lr: Series = field(default_factory=Series)
    update: Series = field(default_factory=Series)
    """The median over the matrices of norm of change divided by norm."""
    labels: Counter[int] = field(default_factory=Counter)
    """How often each class label came, over all steps that were looked at."""
    classes: int = 0
    target_mean: Series = field(default_factory=Series)
    target_std: Series = field(default_factory=Series)
    """Of targets that are no class labels, in the steps that were looked at."""
    tasks: list[Task] = field(default_factory=list)
    """Those of each loss function of the last loss that was looked at, in its order."""
    is_whole: bool = False
    """Is that loss the sum of its loss functions and of nothing else?"""
    criterion: CriterionFacts | None = None
    """The loss function, where it is the only one of the last loss that was looked at."""
    criteria_seen: int = 0
    """How many loss functions that loss had."""
    made_at: Place = field(default_factory=Place)
    """The line that made the last loss that was looked at."""
    looks: int = 0
    windows: tuple[int, tuple[float, float, float, float, float, int] | None] | None = None
    """What `dynamics.windows_of` has found, and for how many losses: several rules ask for it."""
    last: StepFacts | None = None

    @property
    def steps(self) -> int:
        return self.last.number if self.last is not None else 0

    def criteria(self) -> Iterable[CriterionFacts]:
        """The loss functions of its last step that was looked at."""
        return [each for loss in (self.last.losses if self.last else ()) for each in loss.criteria]


class RunFacts:
    """The history of a run, in bounded memory."""

    def __init__(self) -> None:
        self.parameters: dict[str, ParameterFacts] = {}
        """Every parameter of every model that trains, by name."""
        self.optimizers: dict[int, OptimizerRun] = {}
        self.evaluations: deque[EvaluationFacts] = deque(maxlen=EVALUATIONS)
        self.training_step = 0
        self.trained_rows: Counter[int] = Counter()
        """Checksums of samples that were trained on, as far as they were looked at."""
        self.samples = Samples()
        """The samples of the steps that were looked at, and their labels."""
        self.is_over = False
        self.schedulers: list[SchedulerFacts] = []
        self.sequence: SequenceFacts | None = None
        """How the model treats tokens, if it takes some; known after a few looks."""
        self.mixing: SampleFacts | None = None
        """Whether the samples of a batch act on each other; known after a few looks."""

    @property
    def criterion(self) -> str:
        """The kind of the loss function, where there is only one."""
        kinds = {each.criterion.kind for each in self.optimizers.values() if each.criterion is not None}
        return next(iter(kinds)) if len(kinds) == 1 else ""

    def optimizer(self, number: int, kind: str = "") -> OptimizerRun:
        """The series of an optimizer; they are made at its first step."""
        if number not in self.optimizers:
            self.optimizers[number] = OptimizerRun(number, kind)
        return self.optimizers[number]

    def add(self, step: StepFacts) -> None:
        """Take in one step."""
        run = self.optimizer(step.optimizer, step.kind)
        run.last = step
        self.training_step = step.training_step
        if step.loss is not None and not step.is_shared:
            run.loss.add(step.number, step.loss)
        if step.grad_norm is not None:
            run.grad_norm.add(step.number, step.grad_norm)
        run.lr.add(step.number, step.lr)
        run.looks += step.is_looked_at
        for loss in step.losses if not step.is_shared else ():
            for each in loss.criteria:
                run.classes = max(run.classes, each.classes)
                if each.target is not None and len(run.labels) < LABELS:
                    run.labels.update(each.target.counts)
                if each.target is not None and not each.target.counts:
                    run.target_mean.add(step.number, each.target.mean)
                    run.target_std.add(step.number, each.target.std)
            if loss.criteria:
                _note_tasks(run, step.number, loss)
            if loss.is_looked_at:
                run.criteria_seen, run.made_at = len(loss.criteria), loss.made_at
                run.criterion = loss.criteria[0] if len(loss.criteria) == 1 else None
        if step.is_looked_at and not step.is_shared:
            self.samples.add(step)
            self._note_rows(step)

    def _note_rows(self, step: StepFacts) -> None:
        for call in step.forwards:
            if call.with_grad and len(self.trained_rows) < ROWS:
                self.trained_rows.update(call.rows)


def _note_tasks(run: OptimizerRun, step: int, loss: LossFacts) -> None:
    kinds = [each.kind for each in loss.criteria]
    if kinds != [each.criterion.kind for each in run.tasks]:
        run.tasks = [Task(each) for each in loss.criteria]
    for task, criterion in zip(run.tasks, loss.criteria, strict=True):
        task.add(step, criterion)
    run.is_whole = loss.is_whole
