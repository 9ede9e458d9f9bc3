"""Labels that are all the same."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import CriterionFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["ConstantLabels"]

STEPS = 40
MANY, FEW = 1000, 100
"""Labels: a rare class may be missing among a few hundred."""


@rule("R32", "constant-labels", severity="warning", cost="look")
class ConstantLabels(Rule):
    """All labels are the same class.

    Why: the model learns to say that class, whatever its input is, and the loss falls to zero. While only one
    label was seen, the labels of every step are looked at.

    How to fix: look at how the labels are read: a wrong column, a division that makes them all 0, a dataset
    of one class only.
    """

    advice = ("look at how the labels are read: a wrong column, an integer division, one folder only",)
    explains = ("overfitting", "bad-initial-loss")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        if optimizer is None or len(optimizer.labels) != 1 or step.number < STEPS:
            return
        label, count = next(iter(optimizer.labels.items()))
        loss = next((each for each in step.losses if each.criteria), None)
        if loss is None or not all(map(_is_classifier, loss.criteria)) or count < FEW:
            return
        yield Sign(
            f"all of {count} labels are {label}",
            Place(file=loss.made_at.file, line=loss.made_at.line),
            {"labels": count, "classes": optimizer.classes},
            severity=None if count >= MANY else Severity.INFO,
        )


def _is_classifier(criterion: CriterionFacts) -> bool:
    """Does a layer give one output a class? Similarities whose first one is the right one do not."""
    is_known = criterion.kind in ("cross_entropy", "nll") and criterion.input_from in _LAYERS
    return is_known and criterion.width == criterion.classes >= 2


_LAYERS = frozenset(["addmm", "mm", "linear", "convolution", "log_softmax"])
