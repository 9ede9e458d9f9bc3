"""Training in float16 without a gradient scaler."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["HalfPrecisionWithoutScaler"]


@rule("R30", "half-precision-without-scaler", severity="warning", cost="look")
class HalfPrecisionWithoutScaler(Rule):
    """The model computes in float16, and the loss is not scaled.

    Why: float16 has no numbers below 6e-8. Many gradients are smaller, and become zero. A gradient scaler
    multiplies the loss so that they stay in range, and divides before the step. bfloat16 does not need one.

    How to fix: use `torch.amp.GradScaler`, or bfloat16.
    """

    advice = ("use torch.amp.GradScaler", "or bfloat16 in place of float16")
    explains = (
        "update-lost-to-rounding",
        "vanishing-gradients",
        "not-learning",
        "update-too-small",
        "non-finite",
    )
    patience = 3

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or step.scaler is not None or not step.losses:
            return
        if any(abs(loss.scale) > 1 for loss in step.losses):
            return  # scaled by the program itself
        place = step.losses[-1].backward_at
        half = [name for name, look in step.parameters.items() if _is_half(name, run) and look.has_gradient]
        if any(call.autocast == "f16" and call.with_grad for call in step.forwards):
            text = "autocast computes in float16, and no gradient scaler scales the loss"
        elif half:
            text = f"{len(half)} parameters are float16, and the loss is not scaled"
        else:
            return
        yield Sign(text, Place(tuple(half), file=place.file, line=place.line), {"loss": step.loss or 0.0})


def _is_half(name: str, run: RunFacts) -> bool:
    known = run.parameters.get(name)
    return known is not None and known.dtype == "f16"
