"""Steps that change the weights by too much."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["UpdateTooLarge"]

AT_ONCE = 0.5
"""The share of a weight's norm that a step changes; healthy trainings have about 0.001."""
LATER = 0.1
WORSE = 2.0
HUGE = 1e3
"""The norm of the first gradient, at which no step has been taken yet."""
LATE = 100
"""Steps after which a loss that is no better than a guess shows that large steps have done harm."""
LOOKS = 10
STEPS = 20
LONG = 60
"""Only after so many steps a loss that merely stands still is a sign; before, one that has grown."""


@rule("R12", "update-too-large", severity="error", confidence="statistical", cost="always")
class UpdateTooLarge(Rule):
    """Each step changes the weights by a large share of their size, and the loss gets no better.

    Why: the steps overshoot. The learning rate is too large for this model and this loss, or the gradients
    are too large. A healthy step changes a weight matrix by about a thousandth of its norm. A matrix that
    starts at zero or far below the usual size may change by more, and so may any matrix while the loss falls.

    How to fix: divide the learning rate by 10, and again if needed; warm it up; clip the gradients.
    """

    advice = ("divide the learning rate by 10", "warm it up, or clip the gradients")
    explains = (
        "exploding-gradients",
        "diverging",
        "non-finite",
        "not-learning",
        "loss-spike",
        "oscillating",
        "dead-units",
        "saturated-units",
        "plateau",
        "underfitting",
    )

    def __init__(self) -> None:
        self._early: dict[int, list[float]] = {}
        self._worst: dict[int, float] = {}
        """The largest median of several looks. Large steps make weights large, so that the same steps are
        small shares of them later.
        """

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        mine = run.optimizer(step.optimizer)
        if step.kind == "LBFGS" or step.is_climbing or not len(mine.loss):
            return  # the first searches along a line: its steps are large, and tested
        if mine.grad_norm.head(1) and mine.grad_norm.head(1)[0] > HUGE and step.lr < 1:
            return  # the gradients are the cause, not the rate
        first = mine.loss.first[0][1]
        if not math.isfinite(first):
            return  # it was so before any step
        if step.is_looked_at and mine.update.count and mine.update.last > AT_ONCE:
            self._early.setdefault(step.optimizer, []).append(mine.update.last)
        large = self._early.get(step.optimizer, ())
        loss = step.loss if step.loss is not None else math.nan
        if large and step.number <= STEPS and _is_worse(loss, first):
            yield self._sign(max(large), step, loss=loss, first=first)
        elif (
            step.number >= STEPS
            and (step.is_looked_at or not step.number % STEPS)
            and mine.update.count >= LOOKS
        ):
            usual = median(mine.update.tail(LOOKS))
            worst = self._worst[step.optimizer] = max(usual, self._worst.get(step.optimizer, 0.0))
            now, then = median(mine.loss.tail(10)), median(mine.loss.head(5))
            allowed = then - 0.1 * abs(then) if step.number >= LONG else then + 0.1 * abs(then)
            if usual > LATER and not now < allowed:
                yield self._sign(usual, step, loss=now, first=first)
            elif worst > LATER and step.number >= LATE and _is_no_better(mine, allowed):
                yield self._sign(worst, step, loss=now, first=first)

    def _sign(self, update: float, step: StepFacts, *, loss: float, first: float) -> Sign:
        return Sign(
            f"a step changes the weights by {update:.2g} times their size; "
            f"the loss went from {first:.4g} to {loss:.4g}",
            Place(module=step.kind),
            {"update": update, "learning rate": step.lr, "loss at first": first, "loss": loss},
        )


def _is_worse(loss: float, first: float) -> bool:
    return not math.isfinite(loss) or loss > first + max(WORSE - 1, 0) * abs(first)


def _is_no_better(mine: OptimizerRun, allowed: float) -> bool:
    """Is the loss of the last steps no better than at first, or than guessing?"""
    now, guess = median(mine.loss.tail(40)), best_guess(mine)
    return not now < allowed or (guess is not None and guess.loss > 0 and guess.share(now) >= 0.97)
