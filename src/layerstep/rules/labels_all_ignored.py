"""A batch without a label that counts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LabelsAllIgnored"]

ALWAYS = 10


@rule("R43", "labels-all-ignored", severity="error", cost="look")
class LabelsAllIgnored(Rule):
    """Every label of a batch is the one that the loss ignores.

    Why: the mean over no labels is NaN, and one such step ruins all parameters. With a sum the step does
    nothing. This happens if prompts are cut off before the answer begins, or if all labels are padding.

    How to fix: leave such samples out, or cut them at the other end; look at how `-100` gets into the labels.
    """

    advice = ("leave out samples without a label that counts, and look at how -100 gets into the labels",)
    explains = ("non-finite", "not-learning", "loss-spike")

    def __init__(self) -> None:
        self._streak = 0
        """Steps in a row that had no label that counts."""

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        known = [each.target for loss in step.losses for each in loss.criteria if each.target is not None]
        if known:
            self._streak = self._streak + 1 if not any(each.counts for each in known) else 0
        for loss in step.losses:
            for each in loss.criteria:
                target = each.target
                if target is None or not target.ignored or target.counts:
                    continue
                yield Sign(
                    f"all {target.ignored} labels of a batch are ignored by {each.kind}",
                    Place(file=loss.made_at.file, line=loss.made_at.line),
                    {"ignored": target.ignored, "loss": loss.value},
                    severity=None if self._is_harm(each.reduction, loss.value) else Severity.INFO,
                )

    def _is_harm(self, reduction: str, value: float) -> bool:
        """A sum over no labels does nothing, unless it is divided by their number or all batches are so."""
        return reduction == "mean" or not math.isfinite(value) or self._streak >= ALWAYS
