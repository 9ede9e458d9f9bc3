"""A loss that jumps up and down."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged, windows_of
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import WindowRule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import mad, median
from layerstep.registry import rule

__all__ = ["Oscillating"]

LEAST = 60
FLIPS = -0.5
"""The correlation of neighbouring steps: chance gives 0, a loss that jumps to and fro -1."""
SIZE = 0.2


@rule("R40", "oscillating", severity="warning", confidence="statistical", cost="always")
class Oscillating(WindowRule):
    """The loss goes up and down from step to step and does not get better.

    Why: each step jumps over the valley to its other side: the learning rate is too large. Noise from the
    batches looks different: there the sign of the deviation from the median is random. Here it changes in
    every step.

    How to fix: divide the learning rate by three to ten.
    """

    advice = ("lower the learning rate by three to ten",)
    explains = ("not-learning", "plateau", "underfitting")

    def look_back(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        seen = windows_of(optimizer, least=LEAST) if optimizer is not None else None
        if optimizer is None or seen is None or _is_few_batches(run):
            return
        values = optimizer.loss.tail(40)
        middle = median(values)
        flips, size = _neighbours(values), mad(values)
        if flips > FLIPS or size < SIZE * abs(middle) or seen.last < 0.9 * seen.before:
            return
        at = optimizer.made_at
        yield Sign(
            f"the loss jumps to and fro between {min(values):.4g} and {max(values):.4g}",
            Place(file=at.file, line=at.line),
            {
                "correlation of neighbours": flips,
                "lowest": min(values),
                "highest": max(values),
                "lr": step.lr,
            },
        )


def _is_few_batches(run: RunFacts) -> bool:
    """Two to seven different batches in turn have losses in turn, too."""
    return 1 < len({each.digest for each in run.samples.batches}) < min(8, len(run.samples.batches))


def _neighbours(values: list[float]) -> float:
    """The correlation of each deviation from the median with the next."""
    middle = median(values)
    off = [value - middle for value in values]
    power = sum(each * each for each in off)
    return sum(a * b for a, b in itertools.pairwise(off)) / power if power else 0.0
