"""An evaluation on samples that were trained on."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import EvaluationFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["EvaluatedOnTrainingData"]

ROWS = 16
SHARE = 0.3
"""Of the samples that could be found again: only some of either are looked at."""
LEAST = 0.02
"""Of the rows of a dataset, where those of both are known."""
DIFFERENT = 0.5
"""The share of different samples in an evaluation: where samples are alike, some meet by chance."""


@rule("R35", "evaluated-on-training-data", severity="info", cost="look")
class EvaluatedOnTrainingData(Rule):
    """The samples of the evaluations were trained on.

    Why: the measured quality then says how well the model remembers, not how well it works on new samples. It
    may be intended, to follow the training. The rule compares checksums of the samples that the doctor looked
    at. If a `DataLoader` reads both from parts of one dataset, it compares the rows of these parts.

    How to fix: keep some samples out of the training, and evaluate on these.
    """

    advice = ("hold samples back that are never trained on, and evaluate on these",)
    patience = 2

    def evaluated(self, evaluation: EvaluationFacts, run: RunFacts) -> Iterable[Sign]:
        both, whole = evaluation.overlap or (0, 0)
        if both > LEAST * whole:
            yield Sign(
                f"{both} of the {whole} rows that the evaluation reads are among those that are trained on",
                Place(module=evaluation.model, file=evaluation.line.file, line=evaluation.line.line),
                {"evaluated": whole, "trained on": both},
                is_sure=True,
            )
            return
        rows = set(evaluation.rows)
        both = len(rows & run.trained_rows.keys())
        fewest = min(len(rows), len(run.trained_rows))
        if both < ROWS or both < SHARE * fewest or len(rows) < DIFFERENT * len(evaluation.rows):
            return
        yield Sign(
            f"{both} of the {len(rows)} samples of the evaluation that were compared were trained on",
            Place(module=evaluation.model, file=evaluation.line.file, line=evaluation.line.line),
            {"evaluated": len(rows), "trained on": both},
        )
