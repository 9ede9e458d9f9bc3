"""Padding that changes what the model makes of the real tokens."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["PaddingAttended"]

MOVED = 1e-4
"""A change of the outputs above which padding matters: rounding makes 1e-6 (measured on ten models)."""


@rule("T4", "padding-attended", severity="warning", cost="look")
class PaddingAttended(Rule):
    """Padding changes the outputs at the real tokens.

    Why: how much padding a row has depends on the other rows of its batch. If padding changes the real
    tokens, the same text has another output in another batch, and the model learns from noise. The doctor
    tried this on a copy: a row without its padding gave other outputs. In a model without attention, such as
    a recurrent one that reads to the end of the row, this is only a note.

    How to fix: pass the mask on to every attention (`key_padding_mask`, `attention_mask`), and leave padding
    out where the model averages over tokens.
    """

    advice = (
        "pass the padding mask to every attention: src_key_padding_mask, key_padding_mask, attention_mask",
        "leave padding out where the model takes a mean or the last place of a row",
    )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        facts = run.sequence
        if facts is None or not step.is_looked_at or facts.hidden or facts.padding_change is None:
            return
        if facts.padding_change > MOVED * max(1.0, facts.context or 0.0):
            at = f"; it begins in {facts.padding_at}" if facts.padding_at else ""
            yield Sign(
                f"{facts.padding} padding tokens change the outputs at the real ones{at}",
                Place(module=facts.padding_at or facts.model),
                {"change": facts.padding_change, "padding is known by": facts.padding_known_by},
                severity=None if facts.has_attention else Severity.INFO,
            )
