"""A warm-up of the learning rate that ends in a cliff."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["WarmUpCliff"]

RISES = 4
CLIFF = 5.0
KEPT = 16


@rule("R27", "warm-up-cliff", severity="warning", cost="always")
class WarmUpCliff(Rule):
    """The learning rate rises step by step, then changes at once by a factor of 5 or more.

    Why: a warm-up should lead smoothly to the rate that follows it. If the next schedule begins at another
    rate, as when two schedulers are chained with different units or base rates, the warm-up was for nothing:
    after a jump up the steps are too large, after a fall they are too small.

    How to fix: let the warm-up end at the rate at which the next schedule begins; look at the milestones, and
    whether one counts steps and the other epochs.
    """

    advice = (
        "let the warm-up end at the rate at which the next schedule begins",
        "see whether one schedule counts steps and the other epochs",
    )
    explains = ("loss-spike", "diverging", "plateau", "not-learning", "update-too-large", "update-too-small")

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[float, int]]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        held = self._held.setdefault(step.optimizer, [])
        if step.unseen:  # what looks like a jump may be many small steps
            held.clear()
        if held and held[-1][0] == step.lr:
            held[-1] = (step.lr, held[-1][1] + 1)
            return
        if not math.isfinite(step.lr):
            return
        if _is_warm_up(held) and _is_cliff(held[-1][0], step.lr):
            yield Sign(
                f"the learning rate rises to {held[-1][0]:.3g}, then is {step.lr:.3g} at once",
                Place(module=step.kind),
                {"learning rate": (*(rate for rate, _ in held[-4:]), step.lr)},
            )
        held.append((step.lr, 1))
        del held[:-KEPT]


def _is_warm_up(held: list[tuple[float, int]]) -> bool:
    """Did the rate rise in several steps of one length, up to now? A rate that is then held for long has
    ended its warm-up.
    """
    last = held[-RISES - 1 :]
    if len(last) <= RISES or last[-1][1] > 2 * median([float(steps) for _, steps in last[:-1]]):
        return False
    rises = all(one[0] < other[0] for one, other in itertools.pairwise(last))
    return rises and last[-1][0] < 2 * last[-2][0]


def _is_cliff(before: float, after: float) -> bool:
    return after > CLIFF * before or after * CLIFF < before
