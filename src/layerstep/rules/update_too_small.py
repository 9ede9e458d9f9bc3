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
    """Each step changes the weights by less than a thirty thousandth of their size.

    Why: with so small steps a training from scratch gets nowhere in any useful time. A fine-tuning may want
    them; so this is a note, until the loss does not move either.

    How to fix: raise the learning rate. See whether it is in the right unit, whether the loss is divided by
    too much, and whether a schedule has brought it down already.
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
