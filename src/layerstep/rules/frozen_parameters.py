"""Parameters that are not to be trained."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["FrozenParameters"]


@rule("R5", "frozen-parameters", severity="info", cost="always")
class FrozenParameters(Rule):
    """Some parameters of a model that trains have `requires_grad=False`.

    Why: this is how one freezes a backbone, and often intended. If the loss does not fall, check that it is:
    a loop may have frozen too much, or never have unfrozen the layers again.

    How to fix: call `requires_grad_(True)` on what you want to train, before the optimizer is made.
    """

    advice = ("to train them: requires_grad_(True) before the optimizer is made",)
    explains = ("not-learning", "underfitting", "plateau")

    def begins(self, run: RunFacts) -> Iterable[Sign]:
        for model in dict.fromkeys(each.model for each in run.parameters.values()):
            here = [each for each in run.parameters.values() if each.model == model]
            frozen = [each for each in here if not each.requires_grad]
            trains = [each for each in here if each.requires_grad and each.optimizers]
            if not frozen or not trains:
                continue
            sizes = {each.name: math.prod(each.shape) for each in here}
            share = sum(sizes[each.name] for each in frozen) / max(sum(sizes.values()), 1)
            yield Sign(
                f"{len(frozen)} of {len(here)} parameters, {share:.0%} of the elements, are frozen",
                Place(tuple(each.name for each in frozen)),
                {"share": share, "trained": len(trains)},
            )
