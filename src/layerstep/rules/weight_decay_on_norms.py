"""Weight decay on norm layers and biases."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["WeightDecayOnNorms"]

STRONG = 0.05


@rule("R36", "weight-decay-on-norms", severity="info", cost="always")
class WeightDecayOnNorms(Rule):
    """Weight decay pulls the scales of norm layers and the biases towards zero.

    Why: weight decay should keep weight matrices small. A norm layer with a scale near zero passes almost
    nothing on, and a bias does not need to be small. Many recipes leave both out; some do not, so this is a
    note.

    How to fix: give the optimizer two groups, and `weight_decay=0` for parameters with one dimension.
    """

    advice = ("put parameters with one dimension into a group with weight_decay=0",)
    explains = ("underfitting",)

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if step.number != 1:
            return
        decayed = [
            name
            for group in step.groups
            if group.weight_decay >= STRONG
            for name in group.parameters
            if name in run.parameters and "Norm" in run.parameters[name].kind
        ]
        if decayed:
            strength = max(group.weight_decay for group in step.groups)
            yield Sign(
                f"weight decay {strength:g} acts on {len(decayed)} parameters of norm layers",
                Place(tuple(decayed)),
                {"weight decay": strength},
            )
