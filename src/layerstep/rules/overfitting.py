"""An evaluation that gets worse while the training gets better."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess
from layerstep.doctor.facts import EvaluationFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["Overfitting"]

LEAST = 5
MILD, LARGE = 1.1, 1.5
LONG = 8
STEPS = 50
HIGH = 0.15
"""Of the loss of always guessing: an evaluation below that is a good one."""


@rule("R41", "overfitting", severity="warning", confidence="statistical", cost="always")
class Overfitting(Rule):
    """The evaluation loss grows, or stays the same, while the training loss falls.

    Why: the model learns the training samples by heart. The doctor sees the evaluation loss if the model
    returns it as `loss`, or if a loss module or a loss function of torch computes it. The rule compares
    medians of three evaluations. It is only a note if the rise is so small that early stopping would still
    wait, or if the training loss is almost zero while the evaluation loss stays far above it.

    How to fix: stop at the best evaluation; use more data or augmentation, dropout, weight decay, or a
    smaller model.
    """

    advice = (
        "stop at the best evaluation, or keep its checkpoint",
        "use more data or augmentation, dropout, weight decay, or a smaller model",
    )

    def __init__(self) -> None:
        self._seen: list[tuple[int, float, float]] = []

    def evaluated(self, evaluation: EvaluationFacts, run: RunFacts) -> Iterable[Sign]:
        turns = [each for each in run.optimizers.values() if len(each.loss)]
        if evaluation.loss is None or not math.isfinite(evaluation.loss) or len(turns) != 1:
            return
        train = median(turns[0].loss.tail(max(5, min(50, len(turns[0].loss) // 10))))
        self._seen = [*self._seen[-511:], (evaluation.step, evaluation.loss, train)]
        smooth = [
            median([loss for _, loss, _ in self._seen[at : at + 3]]) for at in range(len(self._seen) - 2)
        ]
        if len(smooth) >= 2:
            sign = self._grown(evaluation, smooth) or self._apart(evaluation, smooth, run)
            yield from [sign] if sign is not None else []

    def _grown(self, evaluation: EvaluationFacts, smooth: list[float]) -> Sign | None:
        best_at = min(range(len(smooth)), key=smooth.__getitem__)
        step, _, train_then = self._seen[best_at + 1]
        best, since, train = smooth[best_at], len(smooth) - 1 - best_at, self._seen[-1][2]
        if since < LEAST - 1 or best <= 0 or smooth[-1] < MILD * best or train > 0.9 * train_then:
            return None
        losses = [loss for _, loss, _ in self._seen]
        scatter = median([abs(b - a) for a, b in itertools.pairwise(losses)])
        if smooth[-1] - best < 4 * scatter:
            return None
        is_bad = since >= LONG - 1 and smooth[-1] > LARGE * best and train < 0.7 * train_then
        return Sign(
            f"the evaluation loss was best at step {step} with {best:.4g} and is {smooth[-1]:.4g} now; "
            f"the training loss fell from {train_then:.4g} to {train:.4g}",
            Place(module=evaluation.model),
            {"best": best, "now": smooth[-1], "training": train, "evaluations since": since},
            severity=None if is_bad else Severity.INFO,
        )

    def _apart(self, evaluation: EvaluationFacts, smooth: list[float], run: RunFacts) -> Sign | None:
        """The training loss is next to nothing, and that of evaluations falls no more."""
        optimizer = next(each for each in run.optimizers.values() if len(each.loss))
        guess, train = best_guess(optimizer), self._seen[-1][2]
        known = optimizer.criterion
        if guess is None or known is None or known.reduction != "mean" or optimizer.steps < STEPS:
            return None
        if not 0 <= train < 0.02 * guess.loss:
            return None
        if smooth[-1] < HIGH * guess.loss or smooth[-1] < 0.9 * smooth[-min(LEAST, len(smooth))]:
            return None
        samples = len(run.trained_rows)
        few = f"; it was seen to learn from {samples} samples" if samples else ""
        return Sign(
            f"the training loss is {train:.2g}, that of evaluations stays at {smooth[-1]:.3g}{few}",
            Place(module=evaluation.model),
            {"training": train, "evaluation": smooth[-1], "samples": samples},
            severity=Severity.INFO,
        )
