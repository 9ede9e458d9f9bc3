"""A loss that cannot be negative and is."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.registry import rule

__all__ = ["LossWrongSign"]

_NEVER_NEGATIVE = frozenset(["cross_entropy", "mse", "l1", "smooth_l1", "huber", "nll", "bce", "bce_logits"])


@rule("R48", "loss-wrong-sign", severity="error", cost="always")
class LossWrongSign(Rule):
    """A loss that cannot be negative is negative.

    Why: its sign is wrong, or its input or targets are not what it expects. The optimizer makes the loss
    smaller and smaller, and with the wrong sign it looks for the worst model, without end. `nll_loss` of
    logits, and `binary_cross_entropy_with_logits` with targets outside 0 to 1, do the same. An optimizer with
    `maximize=True` is not reported.

    How to fix: remove the minus; give `nll_loss` log-probabilities; bring the targets into 0 to 1.
    """

    explains = (
        "diverging",
        "not-learning",
        "exploding-gradients",
        "non-finite",
        "update-too-large",
        "loss-spike",
        "bad-initial-loss",
        "saturated-units",
        "dead-units",
    )
    patience = 3

    def __init__(self) -> None:
        self._is_turned = False

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        known = optimizer.criterion if optimizer is not None else None
        if optimizer is not None and len(optimizer.tasks) > 1:
            yield from _of_sum(step, optimizer)
        if optimizer is None or known is None or not known.is_alone or known.reduction == "none":
            return
        for loss in step.losses:
            self._is_turned = loss.is_turned if loss.criteria else self._is_turned
            if not loss.value / loss.scale < 0:
                continue
            if known.kind in _NEVER_NEGATIVE or (known.kind == "log_likelihood" and not self._is_turned):
                yield Sign(
                    f"the loss is {loss.value / loss.scale:.4g}, and {known.kind} cannot be negative"
                    if known.kind in _NEVER_NEGATIVE
                    else f"the loss is the log-probability of the labels, {loss.value:.4g}: that should grow",
                    Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
                    {"loss": loss.value},
                    advice=(_advice(known.kind, is_turned=self._is_turned),),
                )


def _of_sum(step: StepFacts, optimizer: OptimizerRun) -> Iterable[Sign]:
    """A sum of loss functions that is negative as a whole: one of them is taken off, and wins."""
    turned = [each.criterion.kind for each in optimizer.tasks if each.criterion.factor < 0]
    is_known = optimizer.is_whole and all(each.criterion.kind in _NEVER_NEGATIVE for each in optimizer.tasks)
    if turned and is_known and step.loss is not None and step.loss < 0:
        yield Sign(
            f"the loss is {step.loss:.4g}: {turned[0]} is taken off it, and the optimizer makes it large",
            Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
            {"loss": step.loss},
            advice=(f"add {turned[0]} to the loss: remove the minus",),
        )


def _advice(kind: str, *, is_turned: bool) -> str:
    if kind == "nll" and not is_turned:
        return "give nll_loss log-probabilities (log_softmax), or use cross_entropy on the logits"
    if kind in ("bce", "bce_logits") and not is_turned:
        return "bring the targets into 0 to 1"
    if kind == "log_likelihood":
        return "put a minus before it: the optimizer makes the loss small"
    return "remove the minus: the optimizer makes the loss small"
