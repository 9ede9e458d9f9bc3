"""Inputs of a scale that layers cannot work with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["InputScale"]

ODD, BAD = 5.0, 25.0
TINY = 0.01
SAMPLES = 200
STEPS = 50
"""From then on the loss shows whether the model copes with it."""


@rule("R20", "input-scale", severity="warning", confidence="statistical", cost="look")
class InputScale(Rule):
    """A layer gets data that is far from zero mean and unit spread.

    Why: the usual initialisations assume inputs with a std near 1. Raw pixels of 0 to 255 make the first
    outputs a hundred times too large, so units saturate or die and steps overshoot. Inputs that were divided
    twice are almost constant. If the model learns anyway, this is a note.

    How to fix: subtract the mean and divide by the standard deviation of the training data, once.
    """

    advice = ("subtract the mean and divide by the standard deviation of the training data",)
    explains = (
        "dead-units",
        "saturated-units",
        "exploding-gradients",
        "vanishing-gradients",
        "update-too-large",
        "diverging",
        "oscillating",
        "loss-spike",
        "not-learning",
        "plateau",
        "underfitting",
        "non-finite",
        "bad-initial-loss",
        "init-scale",
    )
    patience = 3

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for given in step.layer_inputs:
            self._seen[given.name] += max(given.shape[0] if given.shape else 1, 1)
            far = max(abs(given.mean), given.std)
            most = max(abs(given.low), abs(given.high))
            is_tiny = 0 < most < TINY
            if self._seen[given.name] < SAMPLES or not (far > ODD or is_tiny) or not math.isfinite(far):
                continue
            word = "all below" if is_tiny else "as large as"
            yield Sign(
                f"{given.name} gets data {word} {most:.3g}, mean {given.mean:.3g}, spread {given.std:.3g}",
                Place(module=given.name),
                {"mean": given.mean, "spread": given.std, "lowest": given.low, "highest": given.high},
                severity=None if (far > BAD or is_tiny) and not _copes(step, run) else Severity.INFO,
            )


def _copes(step: StepFacts, run: RunFacts) -> bool:
    """Has the loss come well below that of always guessing, or below its beginning? Not known at first: then
    it has.
    """
    optimizer = run.optimizer(step.optimizer)
    if len(optimizer.loss) < STEPS:
        return True
    now, guess = median(optimizer.loss.tail(10)), best_guess(optimizer)
    if guess is not None and guess.loss > 0:
        return guess.share(now) < 0.5
    return now < 0.3 * median(optimizer.loss.head(3))
