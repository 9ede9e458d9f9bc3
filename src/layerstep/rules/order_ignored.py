"""A model to which the order of its tokens is all the same."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["OrderIgnored"]

NOTHING, SOMETHING = 3e-6, 1e-4
"""Another order makes rounding only, 1.3e-6 in twelve layers (measured); positions that are far weaker than
the tokens make 9e-6. Other tokens make a clear change, a hundred times as large."""


@rule("T6", "order-ignored", severity="info", cost="look")
class OrderIgnored(Rule):
    """The order of the tokens makes no difference.

    Why: attention by itself treats its input as a set. Without positions the model cannot tell "dog bites
    man" from "man bites dog". The doctor tried this on a copy: with the inner tokens of a row in reverse
    order, the outputs at both ends stayed the same, and with other tokens they changed. A bag of words may be
    intended, so this is a note; for a model with attention that predicts the next token it is a warning.

    How to fix: add positions to the embeddings (learned, sinusoidal) or to the attention (rotary, ALiBi).
    """

    advice = ("add positions to the embeddings or to the attention, and check that they are passed on",)
    explains = ("not-learning", "plateau", "underfitting")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        places = run.mixing
        if places is not None and step.is_looked_at and places.order is not None and places.order < NOTHING:
            yield Sign(
                f"another order of the places that {places.table} makes gives the same output: no positions "
                "reach it",
                Place(module=places.table or places.model),
                {"change by order": places.order},
            )
        facts = run.sequence
        if facts is None or not step.is_looked_at or facts.order is None or facts.context is None:
            return
        is_clear = facts.context > SOMETHING and facts.order < facts.context / 100
        if facts.order < NOTHING and is_clear and not facts.hidden:
            predicts = facts.shift == 1 and facts.has_attention
            yield Sign(
                "another order of the tokens gives the same output: no positions reach it",
                Place(module=facts.table or facts.model),
                {"change by order": facts.order, "change by other tokens": facts.context},
                severity=Severity.WARNING if predicts else None,
            )
