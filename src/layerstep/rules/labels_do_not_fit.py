"""Samples that come with other labels each time."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LabelsDoNotFit"]

AGAIN = 60
AGREED = 0.6
BORROWED = 0.8


@rule("R47", "labels-do-not-fit", severity="error", confidence="statistical", cost="look")
class LabelsDoNotFit(Rule):
    """The same sample comes with another label each time.

    Why: inputs and labels were shuffled apart, so there is nothing to learn. Checksums of samples and their
    labels are compared between the steps that were looked at. Not reported are labels that change by a little
    noise, short inputs that are followed by different things, and targets that the model makes itself.

    How to fix: shuffle inputs and labels with the same permutation, or let a `DataLoader` shuffle pairs.
    """

    advice = ("shuffle inputs and labels with the same permutation, or let a DataLoader shuffle pairs",)
    explains = ("not-learning", "plateau", "underfitting", "overfitting", "loss-spike", "oscillating")
    patience = 3

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        seen = run.samples
        if not step.is_looked_at or seen.again < AGAIN or judged(step, run) is None or not _is_long(step):
            return
        total = sum(seen.targets.values())
        chance = sum((count / total) ** 2 for count in seen.targets.values()) if total else 1.0
        agreed, others = seen.agreed / seen.again, seen.again - seen.agreed
        limit = chance + AGREED * (1 - chance) * 0.5
        if chance > 0.9 or agreed > limit or seen.borrowed < BORROWED * others or seen.doubled > 0.05 * total:
            return
        at = step.losses[-1].made_at if step.losses else Place()
        yield Sign(
            f"of {seen.again} samples that came again, {others} had another label than before",
            Place(file=at.file, line=at.line),
            {"again": seen.again, "other label": others, "chance": 1 - chance},
        )


def _is_long(step: StepFacts) -> bool:
    """Has a sample so many values that two equal ones are one sample?"""
    size = max((call.values for call in step.forwards), default=0)
    is_float = any(each.is_float for call in step.forwards for each in call.inputs)
    kinds = {each.reduction for loss in step.losses for each in loss.criteria}
    return size >= (2 if is_float else 8) and bool(kinds & {"mean", "sum"})
