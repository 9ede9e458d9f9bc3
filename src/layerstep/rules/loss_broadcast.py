"""A loss whose operands have different shapes."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LossBroadcast"]


@rule("R7", "loss-broadcast", severity="error", cost="look")
class LossBroadcast(Rule):
    """The prediction is broadcast against the target, so each sample is compared with all others.

    Why: shapes (64, 1) and (64) broadcast to (64, 64). Each prediction is then drawn to every target at once,
    and the best answer is their mean. Torch warns for mse_loss only, not for a difference by hand.

    How to fix: give both the same shape: `out.squeeze(-1)`, or `target.unsqueeze(-1)`.
    """

    advice = ("give both the same shape: out.squeeze(-1) or target.unsqueeze(-1)",)
    explains = ("not-learning", "plateau", "underfitting", "overfitting", "bad-initial-loss")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for loss in step.losses:
            for each in loss.criteria:
                if len(each.enlarged) == 2 and _is_a_batch(each.enlarged[0], step):
                    before, after = each.enlarged
                    yield Sign(
                        f"the prediction of shape {before} is broadcast to {after} in {each.kind}",
                        Place(file=loss.made_at.file, line=loss.made_at.line),
                        {"prediction": str(before), "compared as": str(after)},
                    )


def _is_a_batch(shape: tuple[int, ...], step: StepFacts) -> bool:
    """Has it one row for each sample? A value that is fitted to all samples has not."""
    return shape[0] > 1 and any(call.samples == shape[0] for call in step.forwards)
