"""A learning rate of zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LearningRateZero"]

GROUP = 30
FIRST = 20
AFTER = 50
SHARE = 0.2
TINY = 1e-4
"""Of the largest rate: a schedule that ends at zero is there in its last steps only."""
LONG = 0.4
"""The share of the steps with such a rate."""


@rule("R45", "learning-rate-zero", severity="error", cost="always")
class LearningRateZero(Rule):
    """The optimizer, or one of its groups, steps with a learning rate of zero.

    Why: nothing is learned. Often a schedule has ended while the training goes on, or a warm-up starts at
    zero and counts epochs instead of steps. If a schedule has kept the rate near zero for much of the
    training, this is only a note: the training may be done.

    How to fix: check whether the schedule counts steps or epochs, how many it was given, and whether
    `scheduler.step()` is called.
    """

    advice = (
        "see how many steps the schedule was told, and whether it counts steps or epochs",
        "see whether the scheduler is stepped",
    )
    explains = ("not-learning", "plateau", "underfitting", "update-too-small", "never-updated")

    def __init__(self) -> None:
        self._zero: dict[int, int] = {}
        self._groups: Counter[tuple[int, int]] = Counter()
        """Steps from the beginning on with a rate of zero, by optimizer and group."""
        self._largest: dict[int, float] = {}
        self._tiny: Counter[int] = Counter()
        """Steps in a row with next to no rate."""

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        rates = [group.lr for group in step.groups]
        if not rates or any(math.isnan(rate) or rate for rate in rates):
            self._zero[step.optimizer] = 0
            yield from self._of_groups(step)
            yield from self._next_to_nothing(step)
            return
        before = self._zero.get(step.optimizer, 0)
        zero = self._zero[step.optimizer] = before + 1 + (step.unseen if before else 0)
        always = zero == step.number
        if (always and zero >= FIRST) or (zero >= AFTER and zero >= SHARE * step.number):
            since = "from the beginning" if always else f"since {zero} steps"
            yield Sign(
                f"the learning rate is 0 {since}",
                Place(module=step.kind),
                {"steps": zero},
                severity=self.severity if always else Severity.WARNING,
            )

    def _next_to_nothing(self, step: StepFacts) -> Iterable[Sign]:
        """A schedule that counts batches where epochs were meant has used up the rate long before the end."""
        largest = self._largest[step.optimizer] = max(step.lr, self._largest.get(step.optimizer, 0.0))
        tiny = self._tiny[step.optimizer] = self._tiny[step.optimizer] + 1 if step.lr < TINY * largest else 0
        if tiny >= AFTER and tiny >= LONG * step.number:
            yield Sign(
                f"the learning rate has fallen to {step.lr:.2g}, from {largest:.2g}, and is next to nothing "
                f"since {tiny} steps",
                Place(module=step.kind),
                {"learning rate": step.lr, "largest": largest, "steps": tiny},
                severity=Severity.INFO,
            )

    def _of_groups(self, step: StepFacts) -> Iterable[Sign]:
        """Some groups stand still while others train: it may be meant, so it is a note."""
        for place, group in enumerate(step.groups):
            key = (step.optimizer, place)
            self._groups[key] += group.lr == 0 and self._groups[key] == step.number - 1
            if self._groups[key] == step.number >= GROUP and group.parameters:
                yield Sign(
                    f"the learning rate of group {place} is 0 from the beginning, others train",
                    Place(group.parameters),
                    {"steps": step.number, "parameters": len(group.parameters)},
                    severity=Severity.INFO,
                    advice=("if they are meant to stay as they are: requires_grad_(False)",),
                )
