"""Labels of a causal model that are tokens which it has already read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["LabelsNotShifted"]

USED = 1e-5
"""A change of the output by the other tokens above which the model reads them."""
_WHERE = {0: "the token at its own place", -1: "the token before it"}


@rule("T2", "labels-not-shifted", severity="error", cost="look")
class LabelsNotShifted(Rule):
    """A causal model is trained on tokens that it has already read.

    Why: the label at each position is the token at that position or before it. A causal model has read it, so
    it learns to copy: the loss falls to almost zero within a few hundred steps, and the model has learned
    nothing about the next token. A model that reads each token separately is not reported. A model that reads
    both directions gets a note: an autoencoder may want this, a masked language model does not.

    How to fix: compare the output at position t with token t + 1: `logits[:, :-1]` with `tokens[:, 1:]`.
    Models of transformers that are given `labels` shift them themselves.
    """

    advice = ("compare logits[:, :-1] with tokens[:, 1:]: the label of a place is the next token",)
    explains = ("overfitting",)

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        facts = run.sequence
        if facts is None or not step.is_looked_at or facts.shift not in _WHERE:
            return
        if facts.is_causal is False and facts.shift == 0:
            yield Sign(
                "the label of a place is the token that the model reads there: it learns to copy",
                replace(facts.made_at, module=facts.model),
                {"shift": 0, "tokens": facts.length},
                severity=Severity.INFO,
                advice=("hide the tokens that are to be predicted, and ignore the labels of all others",),
            )
        if facts.is_causal and facts.context is not None and facts.context > USED:
            yield Sign(
                f"the label of a place is {_WHERE[facts.shift]}, which the model has read: it learns to copy",
                replace(facts.made_at, module=facts.model),
                {"shift": facts.shift, "tokens": facts.length},
            )
