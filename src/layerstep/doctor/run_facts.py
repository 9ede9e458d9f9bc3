"""What is known about a whole run: its parameters, optimizers, series and evaluations."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from layerstep.doctor.facts import CriterionFacts, EvaluationFacts, ParameterFacts, StepFacts
from layerstep.doctor.series import Series

__all__ = ["OptimizerRun", "RunFacts"]

LABELS = 4096
"""Different class labels that are counted."""
EVALUATIONS = 512


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
    looks: int = 0
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
        self.is_over = False
        self.schedulers: list[tuple[str, int, int]] = []
        """Of each learning-rate scheduler: its class, its optimizer's number, how often it has stepped."""
        self.scripts: tuple[str, ...] = ()

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
        if step.loss is not None:
            run.loss.add(step.number, step.loss)
        if step.grad_norm is not None:
            run.grad_norm.add(step.number, step.grad_norm)
        run.lr.add(step.number, step.lr)
        run.looks += step.is_looked_at
        for loss in step.losses:
            for each in loss.criteria:
                run.classes = max(run.classes, each.classes)
                if each.target is not None and len(run.labels) < LABELS:
                    run.labels.update(each.target.counts)
