"""Gradients that are clipped while they are still scaled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import mad, median
from layerstep.doctor.source_of_loss import call_after
from layerstep.registry import rule

__all__ = ["ClippedBeforeUnscale"]

LOOKS = 5
SAME = 1e-2
MUCH = 0.01
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")


@rule("R29", "clipped-before-unscale", severity="error", confidence="statistical", cost="look")
class ClippedBeforeUnscale(Rule):
    """The gradients are clipped before the gradient scaler has taken its scale out.

    Why: the scaler multiplies the loss, often by 65536. Clipping sees gradients that are as many times too
    large, and cuts almost all of them. After `unscale_` little is left: every step has the same tiny norm.

    How to fix: call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.
    """

    advice = ("call scaler.unscale_(optimizer) before clip_grad_norm_",)
    explains = ("update-too-small", "not-learning", "plateau", "underfitting", "vanishing-gradients")

    def __init__(self) -> None:
        self._scaled: dict[int, deque[float]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or not step.scaler or not step.grad_norm or not step.backward_norm:
            return
        true = step.backward_norm / step.scaler
        scaled = self._scaled.setdefault(step.optimizer, deque(maxlen=LOOKS))
        if not step.grad_norm < MUCH * true:
            scaled.clear()
            return
        scaled.append(step.grad_norm * step.scaler)
        usual = median(list(scaled))
        if len(scaled) == LOOKS and mad(list(scaled)) < SAME * usual:
            begun = step.losses[-1].backward_at if step.losses else Place()
            place = call_after(begun, _CLIPS) if begun.file else begun
            yield Sign(
                f"the gradients are clipped to {usual:.3g} while they are scaled by {step.scaler:.6g}: "
                f"{step.grad_norm:.2g} is left of {true:.2g}",
                Place(file=place.file, line=place.line),
                {"scale": step.scaler, "gradient norm": step.grad_norm, "without clipping": true},
            )
