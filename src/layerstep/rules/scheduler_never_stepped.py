"""A scheduler that is made and never stepped."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["SchedulerNeverStepped"]

STEPS = 100
ROWS = 4096
AGAIN = 0.5


@rule("R26", "scheduler-never-stepped", severity="warning", cost="end")
class SchedulerNeverStepped(Rule):
    """A learning-rate scheduler was made, and its `step()` is never called.

    Why: the learning rate stays what it was at first: for a warm-up, far too small; for a decay, too large at
    the end.

    How to fix: call `scheduler.step()` after `optimizer.step()`, once for each step or each epoch, as the
    schedule counts.
    """

    advice = ("call scheduler.step() after optimizer.step(), or leave the scheduler out",)
    explains = (
        "learning-rate-zero",
        "update-too-small",
        "plateau",
        "oscillating",
        "underfitting",
        "not-learning",
    )

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._has_come_again = False

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        """See whether samples come a second time: then an epoch is over."""
        if not self._has_come_again and step.is_looked_at and run.schedulers:
            rows = [row for call in step.forwards for row in call.rows]
            known = sum(row in self._rows for row in rows)
            self._has_come_again = bool(rows) and known >= AGAIN * len(rows)
            if len(self._rows) < ROWS:
                self._rows.update(rows)
        return ()

    def ended(self, run: RunFacts) -> Iterable[Sign]:
        for each in run.schedulers:
            mine = run.optimizers.get(each.optimizer)
            steps = mine.steps if mine is not None else run.training_step
            if each.steps or each.was_early or each.is_part or steps < 2:
                continue
            is_sure = self._has_come_again and steps >= 20
            is_sure = is_sure or (steps >= STEPS and not each.is_gone)
            yield Sign(
                f"{each.kind} was not stepped in {steps} steps of the optimizer",
                Place(module=each.kind),
                {"learning rate": mine.lr.last if mine is not None else 0.0},
                severity=self.severity if is_sure else Severity.INFO,
            )
