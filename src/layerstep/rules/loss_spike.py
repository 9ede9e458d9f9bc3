"""A step whose loss stands out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import is_bounded, judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Confidence, Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.doctor.series import mad, median
from layerstep.registry import rule

__all__ = ["LossSpike"]

WINDOW = 50
SIGMAS = 6.0
RENEWED = 10
BACK = 5
"""Steps in which the loss comes back from a spike; one that stays up is no spike."""
LARGE = 5.0
"""Times the largest loss of the first steps: a warning. A smaller spike is a note."""


@rule("R38", "loss-spike", severity="warning", confidence="statistical", cost="always")
class LossSpike(Rule):
    """The loss of one step is far above those around it.

    Why: the batch is bad or the step was too large. The rule compares the loss with the median and the
    scatter of the 50 steps before it. Small spikes are common, so a spike is only a note unless it is far
    above the first losses. If one sample of the batch is far larger than all others, the finding names it.

    How to fix: look at the samples of that batch; clip the gradients; lower the learning rate.
    """

    advice = ("look at the samples of that batch", "clip the gradients; lower the learning rate")
    explains = ("non-finite", "dead-units")

    def __init__(self) -> None:
        self._floor = 0.0
        """No loss below it is a spike; it is found anew every few steps."""
        self._waiting: tuple[int, float, Sign] | None = None
        """A spike that the loss has not come back from yet."""

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        value = step.loss
        if optimizer is not None:
            yield from _of_outlier(step, optimizer)
        if optimizer is None or value is None or not math.isfinite(value) or len(optimizer.loss) <= WINDOW:
            return
        if step.unseen:  # the steps after the spike are not known
            self._waiting = None
        if self._waiting is not None and step.number >= self._waiting[0] + BACK:
            _, top, sign = self._waiting
            self._waiting = None
            if median(optimizer.loss.tail(BACK)) < 0.5 * top:
                yield sign
        elif self._waiting is None and (value >= self._floor or step.number % RENEWED == 0):
            self._look_at(value, step, optimizer)

    def _look_at(self, value: float, step: StepFacts, optimizer: OptimizerRun) -> None:
        before = optimizer.loss.tail(WINDOW + 1)[:-1]
        if len(before) < WINDOW:
            return
        middle, scatter = median(before), mad(before)
        highest = max(optimizer.loss.head(WINDOW), default=value)
        self._floor = 0.5 * max(*before, 0.0)
        if value <= middle + SIGMAS * scatter or value <= 1.5 * abs(middle) or value <= max(before):
            return
        if value <= 0.5 * highest:  # late and small: the loss was almost zero
            return
        is_large = (
            value > (LARGE if _is_even(step) else 4 * LARGE) * highest and value > middle + 20 * scatter
        )
        text = (
            f"the loss of step {step.training_step} is {value:.4g}, {value / max(middle, 1e-12):.3g} times "
        )
        sign = Sign(
            f"{text}the median of the {WINDOW} steps before it",
            Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
            {"step": step.training_step, "loss": value, "median": middle, "scatter": scatter, **_batch(step)},
            severity=None if is_large and is_bounded(optimizer) and step.samples >= 4 else Severity.INFO,
        )
        self._waiting = (step.number, value, sign)


def _of_outlier(step: StepFacts, optimizer: OptimizerRun) -> Iterable[Sign]:
    for loss in step.losses:
        odd = loss.outlier
        if odd is not None:
            yield Sign(
                f"the loss jumps to {loss.value / loss.scale:.4g}: {odd.name} of sample {odd.row} of the "
                f"batch is {odd.size:.3g} off the median, all others are within {odd.next:.3g}",
                Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
                {"step": step.training_step, "row": odd.row, "outlier": odd.size, "next": odd.next},
                advice=("fix or drop this sample, or clip such values; huber_loss is less sensitive to it",),
                is_sure=True,
                confidence=Confidence.EXACT,
                explains=_FOLLOWING,
            )


_FOLLOWING = (
    "update-too-large",
    "diverging",
    "exploding-gradients",
    "saturated-units",
    "not-learning",
    "oscillating",
    "plateau",
    "underfitting",
)
"""What one huge step leads to. Each of them also explains a spike: the one that is a fact, or comes first,
is the cause."""


def _is_even(step: StepFacts) -> bool:
    """Is it a loss of classes, which one sample cannot make as large as a square?"""
    return any(each.kind == "cross_entropy" for loss in step.losses for each in loss.criteria)


def _batch(step: StepFacts) -> dict[str, float]:
    """The range of the first input, where it was looked at."""
    inputs = [each for call in step.forwards for each in call.inputs if call.rows and each.is_float]
    return {"lowest input": inputs[0].low, "highest input": inputs[0].high} if inputs else {}
