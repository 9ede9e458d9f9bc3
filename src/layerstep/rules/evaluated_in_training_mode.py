"""A model that is evaluated in training mode."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import EvaluationFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["EvaluatedInTrainingMode"]

APART = 5
"""Training steps between two evaluations of one call; a call in each step belongs to the training."""


@rule("R23", "evaluated-in-training-mode", severity="error", cost="always")
class EvaluatedInTrainingMode(Rule):
    """The model is in training mode while it is evaluated.

    Why: dropouts drop units at random then, and batch norms use the statistics of the evaluation batch and
    even learn from it. The measured quality is wrong. Not reported are passes over training samples (they
    update the statistics of batch norms), several passes over the same samples, and one call in each step.

    How to fix: call `model.eval()` before the evaluation and `model.train()` after it.
    """

    advice = ("call model.eval() before the evaluation, and model.train() after it",)
    explains = ("overfitting",)

    def __init__(self) -> None:
        self._last = 0

    def evaluated(self, evaluation: EvaluationFacts, run: RunFacts) -> Iterable[Sign]:
        gap, self._last = evaluation.step - self._last, evaluation.step
        if not evaluation.is_training or not evaluation.has_modes:
            return
        rows = evaluation.rows
        is_repeated = evaluation.forwards > 1 and len(rows) > 1 and len(set(rows)) <= len(rows) // 2
        is_trained_on = sum(row in run.trained_rows for row in rows) > len(rows) / 2
        is_one = evaluation.forwards < 2 and (gap < APART or evaluation.samples < 8)
        if is_repeated or is_trained_on or is_one:
            return
        yield Sign(
            f"{evaluation.model} is evaluated in training mode: its dropouts and batch norms are at work",
            Place(module=evaluation.model, file=evaluation.line.file, line=evaluation.line.line),
            {"calls": evaluation.forwards, "samples": evaluation.samples},
        )
