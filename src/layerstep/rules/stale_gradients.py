"""Gradients of an earlier step that were never cleared."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["StaleGradients"]


@rule("R2", "stale-gradients", severity="error", cost="always")
class StaleGradients(Rule):
    """Gradients are not cleared between two steps.

    Why: `backward()` adds to the existing gradients. Without `zero_grad()` each step also includes the
    gradients of all steps before it, so the steps grow and the training overshoots. Gradient accumulation is
    recognised: several backward passes between two steps are fine.

    How to fix: call `optimizer.zero_grad()` once for each step, before `backward()`.
    """

    advice = ("call optimizer.zero_grad() in each step, before backward()",)
    explains = (
        "exploding-gradients",
        "update-too-large",
        "diverging",
        "not-learning",
        "non-finite",
        "loss-spike",
        "oscillating",
        "plateau",
        "underfitting",
        "dead-units",
        "saturated-units",
    )
    patience = 2

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if step.kept_gradients:
            at = step.losses[-1].backward_at if step.losses else Place()
            yield Sign(
                "the gradients of the step before are still there when backward() adds to them",
                Place(step.kept_gradients, file=at.file, line=at.line),
                {"grad_norm": step.grad_norm} if step.grad_norm is not None else {},
            )
