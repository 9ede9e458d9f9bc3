"""A mask that hides the real tokens and shows the padding."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["MaskInverted"]


@rule("T5", "mask-inverted", severity="error", cost="look")
class MaskInverted(Rule):
    """The padding mask hides the real tokens.

    Why: torch's `key_padding_mask` is True for tokens to ignore, and the `attention_mask` of transformers is
    1 for tokens to read. If it is inverted, each position reads the padding and no other real token. The
    doctor tried this on a copy: changing other real tokens changed nothing at a position, and changing the
    padding did. Rows without padding then have nothing to read, which gives NaN.

    How to fix: invert the mask: `~mask`, or `tokens == pad` in place of `tokens != pad`.
    """

    advice = ("turn the mask round: key_padding_mask is True at padding, attention_mask is 1 at real tokens",)
    explains = ("padding-attended", "non-finite", "not-learning", "plateau", "underfitting", "order-ignored")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        facts = run.sequence
        if facts is not None and step.is_looked_at and facts.hidden:
            yield Sign(
                "the mask hides the real tokens from each other and shows the padding",
                Place(module=facts.padding_at or facts.model),
                {"padding tokens": facts.padding, "padding is known by": facts.padding_known_by},
            )
