"""Gradients that are added up over several batches and not divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.facts import ForwardFacts, LossFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["AccumulationUndivided"]

LOOKS = 5
SHARE = 0.8
"""Of the looks that have the usual number of batches."""
_SCALED = ("SGD", "ASGD")
"""Optimizers whose step is as large as the gradient; the others divide by its size."""


@rule("R28", "accumulation-undivided", severity="warning", cost="look")
class AccumulationUndivided(Rule):
    """Several batches are accumulated for a step, and the loss of each is not divided by their number.

    Why: `backward()` adds. With N batches the gradient is N times too large. With SGD this acts like a
    learning rate that is N times too large. With Adam it changes little, so this is only a note.

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
        self._counts: dict[int, Counter[int]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or step.kind == "LBFGS":
            return
        counts = self._counts.setdefault(step.optimizer, Counter())
        counts[len(step.losses)] += 1
        usual, times = counts.most_common(1)[0]
        # The last step of an epoch may have fewer batches.
        if len(step.losses) != usual or times < SHARE * counts.total() or not _is_undivided(step):
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
    """Several passes from one line, each over its own calls with a mean over as many samples."""
    losses = step.losses
    parts = _calls_of(step)
    return (
        len(losses) > 1
        and len({tuple(call.model for call in part) for part in parts}) == 1
        and (_have_one_size(step) or len({part[0].samples for part in parts}) == 1)
        and len({(loss.backward_at.file, loss.backward_at.line) for loss in losses}) == 1
        and len({tuple(each.kind for each in loss.criteria) for loss in losses}) == 1
        and all(_is_mean(loss, step.scaler or 1.0) for loss in losses)
    )


def _calls_of(step: StepFacts) -> list[tuple[ForwardFacts, ...]]:
    """The calls of each pass; nothing if they cannot be told apart."""
    calls = [call for call in step.forwards if call.with_grad]
    each, rest = divmod(len(calls), max(len(step.losses), 1))
    if not each or rest:
        return []
    return [tuple(calls[at : at + each]) for at in range(0, len(calls), each)]


def _have_one_size(step: StepFacts) -> bool:
    """Has each loss as many labels? Samples of graphs and texts differ in length, their labels do not."""
    targets = [each.target for loss in step.losses for each in loss.criteria[:1] if each.target is not None]
    return len(targets) == len(step.losses) and len({each.shape[:1] for each in targets}) == 1


def _is_mean(loss: LossFacts, scaler: float) -> bool:
    """Is it a mean over the batch, or a sum of several, with no factor before it?"""
    factors = [each.factor * loss.scale / scaler for each in loss.criteria]
    means = [each.reduction == "mean" for each in loss.criteria]
    return bool(factors) and all(means) and abs(max(factors) - 1) < 1e-6


def _is_clipped(step: StepFacts) -> bool:
    if step.backward_norm is None or step.grad_norm is None:
        return True
    return step.grad_norm < 0.999 * step.backward_norm / (step.scaler or 1.0)
