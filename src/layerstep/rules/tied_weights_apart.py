"""Weights that were to be one and are two."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import ParameterFacts, StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["TiedWeightsApart"]


@rule("R37", "tied-weights-apart", severity="warning", cost="look")
class TiedWeightsApart(Rule):
    """Two layers begin with equal or transposed weights and are trained apart.

    Why: tied weights are one parameter with two names. If one of them is copied, as by `clone()`, `copy_()`
    or a new `nn.Parameter`, they are equal at first and then drift apart: twice the parameters, and not the
    model that was meant. The rule compares an embedding with an output layer, and a weight with its
    transpose, as in an encoder and its decoder. Other layers are often copies of one another on purpose.

    How to fix: assign the parameter itself, `head.weight = embedding.weight`, after the last move or load.
    """

    advice = (
        "assign the parameter itself: head.weight = embedding.weight",
        "and do so after loading or copying",
    )
    explains = ("overfitting",)

    def __init__(self) -> None:
        self._pairs: list[tuple[str, str]] | None = None

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at:
            return
        if self._pairs is None:
            self._pairs = list(_pairs(run))
        for one, other in self._pairs:
            looks = step.parameters.get(one), step.parameters.get(other)
            if all(look is not None and look.has_gradient and look.moved > 0 for look in looks):
                yield Sign(
                    f"{one} and {other} begin with the same values and are trained apart",
                    Place((one, other)),
                )


def _pairs(run: RunFacts) -> Iterable[tuple[str, str]]:
    """Layers of one kind are often copies of one another; an embedding and a linear layer never are."""
    by_bits: dict[tuple[str, int, tuple[int, ...]], ParameterFacts] = {}
    for each in run.parameters.values():
        if not each.is_matrix or not each.checksum or not each.std > 0 or not each.requires_grad:
            continue
        other = by_bits.setdefault((each.model, each.checksum, each.shape), each)
        is_embedding = "Embedding" in each.kind, "Embedding" in other.kind
        if is_embedding[0] != is_embedding[1] and each.memory != other.memory:
            yield other.name, each.name
        turned = by_bits.get((each.model, each.turned, each.shape[::-1]))
        if turned is not None and each.turned not in (0, each.checksum) and each.memory != turned.memory:
            yield turned.name, each.name
