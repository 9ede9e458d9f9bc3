"""A loss that grows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess, is_bounded, judged, targets_drift, windows_of
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import WindowRule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["Diverging"]

HUGE = 100.0
FEW = 3
"""Steps in a row whose loss is so many times that of the first ones: no window is needed."""


@rule("R19", "diverging", severity="error", confidence="statistical", cost="always")
class Diverging(WindowRule):
    """The loss rises, and is worse than at the beginning.

    Why: the steps overshoot: each one is larger than the valley it should lead into. The medians of the last
    two windows are compared with the best and the first one. Two kinds of losses are not judged: a loss of
    reinforcement learning may grow with the rewards, and optimizers that take turns, as in a GAN, work
    against each other.

    How to fix: divide the learning rate by ten, warm it up, clip the gradients.
    """

    advice = ("divide the learning rate by ten, or warm it up", "clip the gradients: clip_grad_norm_(…, 1.0)")
    explains = ("non-finite", "loss-spike", "oscillating")
    patience = 1

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        yield from super().stepped(step, run)
        optimizer = judged(step, run)
        value = step.loss
        if optimizer is None or value is None or not math.isfinite(value) or value < 1 or step.number < 10:
            return
        first = max((abs(each) for each in optimizer.loss.head(10)), default=math.inf)
        if value > HUGE * first and all(each > HUGE * first for each in optimizer.loss.tail(FEW)):
            yield Sign(
                f"the loss has grown to {value:.4g} within {step.number} steps; it began at {first:.4g}",
                Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
                {"first": first, "last": value, "lr": step.lr},
            )

    def look_back(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        if optimizer is None:
            return
        seen = windows_of(optimizer, least=60)
        if seen is None or targets_drift(optimizer):
            return
        known = optimizer.criterion is not None or bool(optimizer.criteria_seen)
        factor = 2.0 if is_bounded(optimizer) else 3.0 if known else 100.0
        guess = best_guess(optimizer)
        floor = max(abs(seen.first), 1.2 * guess.loss if guess is not None else 0.0, abs(seen.best) * factor)
        worst = min(seen.last, seen.before)
        if worst > floor + 4 * seen.noise / seen.length**0.5 and worst > seen.first * factor**0.5:
            at = optimizer.made_at
            yield Sign(
                f"the loss has grown to {seen.last:.4g}; it began at {seen.first:.4g} "
                f"and its best was {seen.best:.4g}",
                Place(file=at.file, line=at.line),
                {"first": seen.first, "best": seen.best, "last": seen.last, "lr": step.lr},
            )
