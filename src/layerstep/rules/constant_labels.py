"""Labels that are all the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import CriterionFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts, Task
from layerstep.registry import rule

__all__ = ["ConstantLabels"]

STEPS = 40
LOOKS = 5
MANY, FEW = 1000, 100
"""Labels: a rare class may be missing among a few hundred."""


@rule("R32", "constant-labels", severity="warning", cost="look")
class ConstantLabels(Rule):
    """All labels are the same class, or all targets the same number.

    Why: the model learns to say that class, whatever its input is, and the loss falls to zero. While only one
    label was seen, the labels of every step are looked at. If all targets are one number, this is only a
    note: it may be intended, as in a loss that compares the residual of an equation with zero.

    How to fix: look at how the labels are read: a wrong column, a division that makes them all 0, a dataset
    of one class only.
    """

    advice = ("look at how the labels are read: a wrong column, an integer division, one folder only",)
    explains = ("overfitting", "bad-initial-loss", "not-learning", "plateau")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        loss = next((each for each in step.losses if each.criteria), None)
        if optimizer is None or loss is None or step.number < STEPS:
            return
        where = Place(file=loss.made_at.file, line=loss.made_at.line)
        yield from _same_number(optimizer, where)
        for place, task in enumerate(optimizer.tasks):
            if len(task.labels) != 1 or not _is_classifier(task.criterion):
                continue
            label, count = next(iter(task.labels.items()))
            if count < FEW:
                continue
            which = (
                f" of loss function {place + 1} of {len(optimizer.tasks)}" if len(optimizer.tasks) > 1 else ""
            )
            yield Sign(
                f"all of {count} labels{which} are {label}",
                where,
                {"labels": count, "classes": task.criterion.classes},
                severity=None if count >= MANY else Severity.INFO,
            )


def _same_number(optimizer: OptimizerRun, where: Place) -> Iterable[Sign]:
    """Targets that are no classes: each batch has one value, and all have the same. Where one part of the
    loss wants zeros and another one ones, both are meant.
    """
    same = [(task, value) for task in optimizer.tasks if (value := _only_value(task)) is not None]
    if len({value for _, value in same}) != 1:
        return
    task, value = same[0]
    target = task.criterion.target
    count = len(task.mean) * math.prod(target.shape) if target is not None else 0
    is_whole = len(optimizer.tasks) > 1 or task.criterion.is_alone
    if count >= FEW and is_whole:
        which = f" of a part of the loss, {task.criterion.kind}," if len(optimizer.tasks) > 1 else ""
        yield Sign(
            f"all of {count} targets{which} are {value:.4g}",
            where,
            {"targets": count, "value": value},
            severity=Severity.INFO,
        )


def _only_value(task: Task) -> float | None:
    """The number that all targets are; None if there are several, or too few looks."""
    means, stds, target = task.mean.values(), task.std.values(), task.criterion.target
    if task.labels or target is None or target.distinct != 1 or len(means) < LOOKS:
        return None
    room = 1e-6 * abs(means[0])  # the mean of equal numbers is rounded
    return means[0] if max(stds) <= room and max(means) - min(means) <= room else None


def _is_classifier(criterion: CriterionFacts) -> bool:
    """Does a layer give one output a class? Similarities whose first one is the right one do not."""
    is_known = criterion.kind in ("cross_entropy", "nll") and criterion.input_from in _LAYERS
    return is_known and criterion.width == criterion.classes >= 2


_LAYERS = frozenset(["addmm", "mm", "linear", "convolution", "log_softmax"])
