"""A scheduler that steps before the optimizer does."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["SchedulerBeforeOptimizer"]


@rule("R25", "scheduler-before-optimizer", severity="warning", cost="always")
class SchedulerBeforeOptimizer(Rule):
    """The scheduler steps before the first step of its optimizer.

    Why: the first value of the schedule is never used, and all others come one step early. With a warm-up
    this hardly matters. With a schedule that counts epochs, a whole epoch at the full rate is lost.

    How to fix: call `optimizer.step()` first, then `scheduler.step()`.
    """

    advice = ("call scheduler.step() after optimizer.step()",)

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if step.number != 1:
            return
        for each in run.schedulers:
            if each.was_early and not each.is_part and each.optimizer in (0, step.optimizer):
                yield Sign(
                    f"{each.kind} has stepped before the optimizer: the first learning rate is left out",
                    Place(module=each.kind),
                    {"learning rate": step.lr},
                )
