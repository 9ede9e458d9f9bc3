"""Gradients that are added up over several batches and not divided."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["AccumulationUndivided"]

LOOKS = 5
_SCALED = ("SGD", "ASGD")
"""Optimizers whose step is as large as the gradient; the others divide by its size."""


@rule("R28", "accumulation-undivided", severity="warning", cost="look")
class AccumulationUndivided(Rule):
    """Several batches are accumulated for a step, and the loss of each is not divided by their number.

    Why: `backward()` adds. The gradient is as many times too large as there are batches, which with SGD is a
    learning rate that is as many times too large. With Adam it changes little; then this is a note.

    How to fix: `(loss / batches).backward()`.
    """

    advice = ("divide the loss by the number of batches that are accumulated", "or divide the learning rate")
    explains = (
        "update-too-large",
        "exploding-gradients",
        "diverging",
        "loss-spike",
        "oscillating",
        "non-finite",
    )
    patience = LOOKS

    def __init__(self) -> None:
        self._counts: dict[int, set[int]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or step.kind == "LBFGS":
            return
        counts = self._counts.setdefault(step.optimizer, set())
        counts.add(len(step.losses))
        if len(counts) > 1 or not _is_undivided(step):
            return
        is_meant = step.kind not in _SCALED or _is_clipped(step)
        place = step.losses[0].backward_at
        yield Sign(
            f"the gradients of {len(step.losses)} batches are added up and not divided by {len(step.losses)}",
            Place(file=place.file, line=place.line),
            {"batches": len(step.losses), "gradient norm": step.grad_norm or 0.0},
            severity=Severity.INFO if is_meant else self.severity,
        )


def _is_undivided(step: StepFacts) -> bool:
    """Several passes from one line, each over its own call of one model with a mean over as many samples."""
    calls = [call for call in step.forwards if call.with_grad]
    losses = step.losses
    kinds = {(each.kind, each.reduction) for loss in losses for each in loss.criteria}
    return (
        len(losses) > 1
        and len(calls) == len(losses)
        and len({(call.model, call.samples) for call in calls}) == 1
        and len({(loss.backward_at.file, loss.backward_at.line) for loss in losses}) == 1
        and all(
            len(loss.criteria) == 1 and abs(loss.scale / (step.scaler or 1.0) - 1) < 1e-6 for loss in losses
        )
        and len(kinds) == 1
        and next(iter(kinds))[1] == "mean"
    )


def _is_clipped(step: StepFacts) -> bool:
    if step.backward_norm is None or step.grad_norm is None:
        return True
    return step.grad_norm < 0.999 * step.backward_norm / (step.scaler or 1.0)
