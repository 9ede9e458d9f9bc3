"""A loss that does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess, falls_steadily, judged, targets_drift, windows_of
from layerstep.doctor.facts import EvaluationFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import WindowRule
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["NotLearning"]

LEAST = 100
FAR = 1.5
"""So many times the guess: the samples of the evaluation are of another kind, or known to be overfitted."""
SAMPLES = 50
MOVED = 0.1
"""The way that the weights have gone, of their size: before that the steps are slow, not wrong."""
TINY = 3e-5
"""A step that changes the weights by less gets nowhere."""
NEAR = 2.0
"""So many times the guess: a model that ignores its input settles at the guess itself."""


@rule("R18", "not-learning", severity="warning", confidence="statistical", cost="always")
class NotLearning(WindowRule):
    """After many steps the loss is no better than always guessing the most common labels.

    Why: the model makes no use of its input. The medians of the last two windows are compared with the
    entropy of the labels or the variance of the targets, and with the first window. A loss that has fallen
    but is still far above the guess does not count: the model began far from the scale of the targets. This
    is only a note if the loss falls slowly and steadily, if the steps have not yet changed the weights by a
    tenth of their size, or if the loss function is not known, because such a loss need not fall. If the
    training loss falls but no evaluation beats the guess, the model learned the samples by heart: the labels
    may belong to other samples.

    How to fix: `probe overfit` trains on one batch; a model that cannot learn that has a fault in the loss,
    the labels or the path of the gradients. Then look at the learning rate.
    """

    advice = (
        "`probe overfit`: a model that cannot learn one batch has a fault in loss, labels or gradient path",
        "try a learning rate ten times as large, then ten times as small",
    )
    explains = ("plateau", "underfitting")
    confirm = "probe overfit"

    def __init__(self) -> None:
        super().__init__()
        self._evaluations: list[float] = []

    def evaluated(self, evaluation: EvaluationFacts, run: RunFacts) -> Iterable[Sign]:
        turns = [each for each in run.optimizers.values() if len(each.loss)]
        if evaluation.loss is None or not math.isfinite(evaluation.loss) or len(turns) != 1:
            return
        if evaluation.samples < SAMPLES:
            return
        optimizer = turns[0]
        seen, self._evaluations = self._evaluations, [*self._evaluations[-511:], evaluation.loss]
        guess = best_guess(optimizer)
        if len(seen) < 2 or optimizer.steps < LEAST or guess is None or targets_drift(optimizer):
            return
        is_mean = optimizer.criterion is not None and optimizer.criterion.reduction == "mean"
        is_better = guess.share(min(seen)) < 0.97 or max(*seen[-1:], evaluation.loss) < 0.99 * seen[0]
        is_better = is_better or (evaluation.loss < seen[0] and _is_slow(optimizer))
        if guess.loss > 0 and is_mean and not is_better and evaluation.loss < FAR * guess.loss:
            at = optimizer.made_at
            yield Sign(
                f"after {optimizer.steps} steps the evaluation loss is {evaluation.loss:.4g}, and never was "
                f"better than {guess.words} ({guess.loss:.4g})",
                Place(file=at.file, line=at.line),
                {"evaluation": evaluation.loss, "guess": guess.loss},
                advice=("see whether each label belongs to its sample: both may have been shuffled apart",),
                is_sure=True,
            )

    def look_back(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        if optimizer is None or step.number < LEAST:
            return
        seen, guess = windows_of(optimizer, least=LEAST), best_guess(optimizer)
        if seen is None or targets_drift(optimizer) or seen.last > 1.5 * abs(seen.first) + 1e-12:
            return
        is_falling = seen.first - seen.last > max(0.02 * abs(seen.first), 2 * seen.noise / seen.length**0.5)
        recent = seen.before - seen.last > max(0.005 * abs(seen.before), 2 * seen.noise / seen.length**0.5)
        at = optimizer.made_at
        where, numbers = Place(file=at.file, line=at.line), {"first": seen.first, "last": seen.last}
        if guess is not None and guess.loss > 0:
            is_on_its_way = seen.last > NEAR * guess.loss and seen.last < 0.5 * seen.first
            if guess.share(min(seen.before, seen.last)) >= 0.97 and not recent and not is_on_its_way:
                is_slow = _is_slow(optimizer)
                slowly = "; it falls slowly, or has hardly begun to" if is_slow else ""
                yield Sign(
                    f"after {step.number} steps the loss is {seen.last:.4g}, no better than {guess.words} "
                    f"({guess.loss:.4g}){slowly}",
                    where,
                    {**numbers, "guess": guess.loss},
                    severity=Severity.INFO if is_slow else None,
                )
        elif not is_falling and not recent and optimizer.criteria_seen and optimizer.criterion is None:
            yield Sign(
                f"the loss has not fallen in {step.number} steps: {seen.first:.4g}, now {seen.last:.4g}",
                where,
                numbers,
                severity=Severity.INFO,
            )


def _is_slow(optimizer: OptimizerRun) -> bool:
    """Does the loss fall steadily, or have the steps not yet led far?"""
    update = median(optimizer.update.values())
    return falls_steadily(optimizer) or TINY < update < MOVED / max(optimizer.steps, 1)
