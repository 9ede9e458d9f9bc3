"""An evaluation that gets worse while the training gets better."""

from __future__ import annotations

import math
from collections.abc import Iterable

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


@rule("R41", "overfitting", severity="warning", confidence="statistical", cost="always")
class Overfitting(Rule):
    """The loss of evaluations grows while that of the training falls.

    Why: the model learns the training samples by heart. The evaluation loss is seen where the model returns
    it as `loss`, or where a loss module computes it; a function such as `F.cross_entropy` is not seen. A rise
    that early stopping would wait for is a note.

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
        best_at = min(range(len(self._seen)), key=lambda at: self._seen[at][1])
        step, best, train_then = self._seen[best_at]
        since = len(self._seen) - 1 - best_at
        lately = min(value for _, value, _ in self._seen[-3:])
        if since < LEAST or best <= 0 or lately < MILD * best or train > 0.9 * train_then:
            return
        is_bad = since >= LONG and lately > LARGE * best and train < 0.7 * train_then
        yield Sign(
            f"the evaluation loss was best at step {step} with {best:.4g} and is {evaluation.loss:.4g} now; "
            f"the training loss fell from {train_then:.4g} to {train:.4g}",
            Place(module=evaluation.model),
            {"best": best, "now": evaluation.loss, "training": train, "evaluations since": since},
            severity=None if is_bad else Severity.INFO,
        )
