"""A loss that is summed over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LossScalesWithBatch"]


@rule("R8", "loss-scales-with-batch", severity="info", cost="look")
class LossScalesWithBatch(Rule):
    """The loss is a sum over the samples, so that the step size grows with the batch.

    Why: with `reduction="sum"` a batch of 64 makes a gradient 64 times as large as one sample does. A
    learning rate that fits one batch size does not fit another, and the last, smaller batch counts less. It
    may be intended: the loss of a VAE is often a sum.

    How to fix: use `reduction="mean"`, or divide the loss by the number of samples.
    """

    advice = ('use reduction="mean", or divide the loss by the batch size',)
    explains = (
        "update-too-large",
        "exploding-gradients",
        "diverging",
        "oscillating",
        "loss-spike",
        "non-finite",
        "dead-units",
        "saturated-units",
        "not-learning",
    )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for loss in step.losses:
            has_mean = any(each.reduction == "mean" for each in loss.criteria)
            if not math.isfinite(loss.value):
                continue  # it may be divided by zero
            for each in loss.criteria:
                if each.reduction != "sum" or each.kind == "log_likelihood" or step.samples < 2:
                    continue
                if has_mean and (each.target is None or each.target.shape[:1] != (step.samples,)):
                    continue  # the sum is a penalty added to the mean
                factor = 1.0 if math.isnan(each.factor) else each.factor
                whole = abs(loss.scale * factor) * step.samples / max(len(step.losses), 1)
                if 1.5 < whole < math.inf:
                    yield Sign(
                        f"{each.kind} is summed over the batch and not divided by its size",
                        Place(file=loss.made_at.file, line=loss.made_at.line),
                        {"samples": step.samples, "factor": loss.scale},
                    )
