"""Labels that were shifted once by the program and once by the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LabelsShiftedTwice"]


@rule("T3", "labels-shifted-twice", severity="error", cost="look")
class LabelsShiftedTwice(Rule):
    """The label at each position is the token after the next one.

    Why: the data were shifted by one position, and the model or the loss shifts them once more. The model
    learns to skip a token: its loss stays too high, and the text that it writes misses every other token. A
    model that also has a loss for the next token is not reported.

    How to fix: shift once. Models of transformers shift `labels` themselves: give them the tokens as they
    are, `labels=input_ids`.
    """

    advice = (
        "shift once: if the model shifts its labels, give it labels=input_ids",
        "or compare the output of place t with token t + 1, and leave the data as they are",
    )
    explains = ("not-learning", "plateau", "underfitting")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        facts = run.sequence
        if facts is not None and step.is_looked_at and facts.shift == 2:
            yield Sign(
                "the label of each place is the token two places on: it was shifted twice",
                replace(facts.made_at, module=facts.model),
                {"shift": 2, "tokens": facts.length},
            )
