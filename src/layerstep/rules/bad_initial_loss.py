"""A first loss that is far from that of a fresh model."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["BadInitialLoss"]

HIGH, LOW = 2.0, 0.5


@rule("R9", "bad-initial-loss", severity="info", confidence="statistical", cost="look")
class BadInitialLoss(Rule):
    """The first loss is far from that of a uniform guess over the classes.

    Why: a fresh classifier of K classes should begin near ln K. Much more means that it is sure of wrong
    answers: its last layer starts too large. Much less means that it knows the answers: it was trained
    before, which is fine, or the labels leak into the input.

    How to fix: start the last layer with small weights; look at the loss function and the labels.
    """

    advice = (
        "start the last layer with small weights and zero biases",
        "check the loss function, its sign and the labels; a model that was trained before starts low",
    )
    explains = (
        "loss-spike",
        "update-too-large",
        "not-learning",
        "exploding-gradients",
        "plateau",
        "underfitting",
    )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if step.number != 1 or step.loss is None:
            return
        loss = step.losses[0]
        known = loss.criteria[0] if len(loss.criteria) == 1 else None
        if known is None or known.kind != "cross_entropy" or not known.is_alone or known.reduction != "mean":
            return
        if known.classes < 2 or known.is_weighted or not math.isfinite(step.loss):
            return
        fresh = math.log(known.classes)
        if not LOW * fresh <= step.loss <= HIGH * fresh:
            word = "above" if step.loss > fresh else "below"
            yield Sign(
                f"the first loss is {step.loss:.3g}, far {word} ln {known.classes} = {fresh:.3g}",
                Place(file=loss.made_at.file, line=loss.made_at.line),
                {"first loss": step.loss, "ln K": fresh},
            )
