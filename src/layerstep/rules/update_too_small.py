"""Steps that change the weights by almost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["UpdateTooSmall"]

SMALL = 3e-5
LOOKS = 10
STEPS = 20


@rule("R13", "update-too-small", severity="info", confidence="statistical", cost="always")
class UpdateTooSmall(Rule):
    """Each step changes the weights by less than 1/30,000 of their size.

    Why: with such small steps, training from scratch takes far too long. Fine-tuning may need them, so this
    is a note unless the loss does not change either.

    How to fix: raise the learning rate. Check its unit, what the loss is divided by, and whether a schedule
    has already lowered it.
    """

    advice = ("raise the learning rate", "see whether the loss is divided by too much")
    explains = ("not-learning", "plateau", "underfitting")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        mine = run.optimizer(step.optimizer)
        if step.number % STEPS and not step.is_looked_at:
            return
        if step.number < STEPS or mine.update.count < LOOKS or step.kind == "LBFGS":
            return
        highest = max(mine.lr.values())
        update = median(mine.update.tail(LOOKS))
        is_full = math.isnan(step.lr) or (step.lr > 0 and step.lr >= 0.5 * highest)
        if update < SMALL and is_full:
            yield Sign(
                f"a step changes the weights by {update:.2g} times their size",
                Place(module=step.kind),
                {"update": update, "learning rate": step.lr, "gradient norm": step.grad_norm or 0.0},
            )
