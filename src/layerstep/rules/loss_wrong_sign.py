"""A loss that cannot be negative and is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Confidence, Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["LossWrongSign"]

_NEVER_NEGATIVE = frozenset(["cross_entropy", "mse", "l1", "smooth_l1", "huber", "nll", "bce", "bce_logits"])

EVERY = 20
"""Steps of a part of the loss, of which three are compared."""
FAR = 10.0
"""Times the first losses: a density that is learned well stays above."""


@rule("R48", "loss-wrong-sign", severity="error", cost="always")
class LossWrongSign(Rule):
    """A loss that cannot be negative is negative.

    Why: its sign is wrong, or its input or targets are not what it expects. The optimizer makes the loss
    smaller and smaller, and with the wrong sign it looks for the worst model, without end. `nll_loss` of
    logits, and `binary_cross_entropy_with_logits` with targets outside 0 to 1, do the same. A sum in which
    one term has no lowest value falls faster and faster. An optimizer with `maximize=True` is not reported.
    Log-probabilities of actions, times what the actions earn, should grow: without a minus this is a note,
    because the factor may be a cost.

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
        yield from _of_actions(step)
        if optimizer is not None and not step.number % EVERY:
            yield from _without_bound(step, optimizer)
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


def _of_actions(step: StepFacts) -> Iterable[Sign]:
    """A policy gradient that makes what earns most less likely."""
    for loss in step.losses:
        if loss.lowers_likelihood and not step.is_climbing:
            yield Sign(
                "the loss adds log-probabilities times what they earn: good actions become unlikely",
                Place(file=loss.made_at.file, line=loss.made_at.line),
                {"loss": loss.value},
                severity=Severity.INFO,
                advice=("put a minus before it: loss = -(log_prob * advantage).mean()",),
            )


def _without_bound(step: StepFacts, optimizer: OptimizerRun) -> Iterable[Sign]:
    """The loss falls below zero faster and faster: a term of it has no lower bound, or the wrong sign."""
    losses = optimizer.loss.tail(3 * EVERY)
    first = max((abs(each) for each in optimizer.loss.head(10)), default=math.inf)
    if len(losses) < 3 * EVERY:
        return
    parts = [median(losses[at : at + EVERY]) for at in range(0, 3 * EVERY, EVERY)]
    falls = [before - after for before, after in itertools.pairwise(parts)]
    if parts[-1] < -FAR * max(first, 1.0) and falls[1] > falls[0] > 0:
        yield Sign(
            f"the loss falls faster and faster, to {parts[-1]:.4g}",
            Place(file=optimizer.made_at.file, line=optimizer.made_at.line),
            {"loss": parts[-1], "at first": optimizer.loss.head(1)[0]},
            severity=Severity.WARNING if parts[-1] < -10 * FAR * max(first, 1.0) else Severity.INFO,
            advice=("look for a term with the wrong sign, or one that has no lowest value",),
            is_sure=True,
            confidence=Confidence.STATISTICAL,
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
