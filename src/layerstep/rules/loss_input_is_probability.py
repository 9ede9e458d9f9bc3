"""A loss for logits that is given probabilities."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LossInputIsProbability"]

_WRONG = {
    ("cross_entropy", "softmax"): "cross_entropy applies softmax itself: give it logits",
    (
        "cross_entropy",
        "log_softmax",
    ): "cross_entropy applies log_softmax itself: give it logits, or use nll_loss",
    ("cross_entropy", "sigmoid"): "cross_entropy wants logits: leave the sigmoid out",
    ("bce_logits", "sigmoid"): "binary_cross_entropy_with_logits applies the sigmoid itself: give it logits",
    ("bce_logits", "softmax"): "binary_cross_entropy_with_logits wants logits: leave the softmax out",
    ("ctc", "softmax"): "ctc_loss wants log-probabilities: use log_softmax",
    ("nll", "softmax"): "nll_loss wants log-probabilities: use log_softmax, or cross_entropy on logits",
}


@rule("R6", "loss-input-is-probability", severity="error", cost="look")
class LossInputIsProbability(Rule):
    """A loss that wants logits gets the output of a softmax or sigmoid.

    Why: the loss applies the function once more. Probabilities lie between 0 and 1, so the second softmax is
    almost flat: the loss cannot fall far, and the gradients are small.

    How to fix: remove the softmax or sigmoid at the end of the model, or use the loss for probabilities.
    """

    explains = (
        "not-learning",
        "plateau",
        "underfitting",
        "vanishing-gradients",
        "update-too-small",
        "bad-initial-loss",
    )
    confirm = "probe overfit"

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for loss in step.losses:
            for each in loss.criteria:
                advice = _WRONG.get((each.kind.removeprefix("soft_"), each.input_from))
                if advice is not None:
                    # cross_entropy keeps what its own log_softmax made of its input
                    what = "log-probability" if "cross_entropy" in each.kind else "input"
                    yield Sign(
                        f"{each.kind} gets the output of {each.input_from}",
                        Place(file=loss.made_at.file, line=loss.made_at.line),
                        {f"lowest {what}": each.low, f"highest {what}": each.high},
                        advice=(advice,),
                    )
