"""Parameters of half precision whose updates round away."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["UpdateLostToRounding"]

MOST = 0.8
HALF = 0.5
"""From this share on it is a note, until nothing is learned."""
STEPS = 30
"""What has not moved in so many steps is judged at the next look: the share counts them all."""


@rule("R31", "update-lost-to-rounding", severity="warning", confidence="statistical", cost="look")
class UpdateLostToRounding(Rule):
    """Most elements of half-precision parameters have a gradient and have never moved.

    Why: bfloat16 keeps 8 bits of a number. A change of less than 0.2 to 0.4 % of a weight is rounded away,
    and a healthy step changes weights by 0.1 %. Such a weight stays where it is, step after step.

    How to fix: keep the parameters in float32 and compute in bfloat16 by autocast; or use an optimizer that
    keeps float32 copies or rounds stochastically.
    """

    advice = (
        "keep the parameters in float32, and compute in half precision with torch.autocast",
        "or use an optimizer that keeps float32 copies of the parameters",
    )
    explains = ("not-learning", "plateau", "underfitting", "never-updated", "update-too-small")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or step.number < STEPS or _warms_up(step):
            return
        stuck = {
            name: look.stuck
            for name, look in step.parameters.items()
            if name in run.parameters
            and run.parameters[name].dtype in ("f16", "bf16")
            and run.parameters[name].is_matrix
            and look.has_gradient
            and look.norm > 0
        }
        share = median(list(stuck.values()))
        if share > HALF:
            yield Sign(
                f"{share:.0%} of the elements with a gradient have not moved in {step.number} steps",
                Place(tuple(name for name, each in stuck.items() if each > HALF)),
                {"share": share, "learning rate": step.lr},
                severity=None if share > MOST else Severity.INFO,
            )


def _warms_up(step: StepFacts) -> bool:
    """Is the rate still far below the one that the optimizer was made with?"""
    return any(group.initial_lr and group.lr < 0.5 * group.initial_lr for group in step.groups)
