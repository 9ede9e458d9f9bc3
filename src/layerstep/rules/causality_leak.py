"""A causal language model that sees the token it is to predict."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.sequence_facts import LEAK
from layerstep.registry import rule

__all__ = ["CausalityLeak"]


@rule("T1", "causality-leak", severity="error", cost="look")
class CausalityLeak(Rule):
    """A model that should predict the next token can see it.

    Why: the labels are the tokens shifted by one position, so the output at a position must not depend on
    later tokens. If it does, the model copies the answer: the loss falls far below what is possible, and the
    model writes nonsense when it generates text. The doctor tried this on a copy: it changed later tokens,
    and the outputs before them changed. Positions whose labels are ignored do not count.

    How to fix: give the attention a causal mask (`is_causal=True`, or `torch.triu(…, diagonal=1)` set to
    minus infinity). Look for a mask that is off by one, not passed on, or applied after the softmax, for a
    norm over the tokens, and for a layer that reads both directions.
    """

    advice = (
        "give the attention a causal mask: is_causal=True, or an upper triangle with diagonal=1 at -inf",
        "look for a norm or a convolution over the tokens, and for a layer that reads both directions",
    )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        facts = run.sequence
        if facts is None or not step.is_looked_at or facts.shift != 1 or not facts.leak:
            return
        if facts.leak > LEAK:
            where = f"it begins in {facts.leak_at}" if facts.leak_at else f"{facts.model} as a whole"
            yield Sign(
                f"later tokens change the outputs before them, and the labels are the next tokens; {where}",
                Place(module=facts.leak_at or facts.model),
                {"change": facts.leak, "tokens": facts.length},
            )
