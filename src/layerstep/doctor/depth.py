"""The gradients of the weights in the order of the calls: do they shrink or grow on their way?"""

from __future__ import annotations

from dataclasses import dataclass

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median

__all__ = ["Depth", "depth_of"]

FEWEST = 4
"""Weights that a model must have to speak of its depth."""


@dataclass(frozen=True, slots=True)
class Depth:
    """The weights from the input to the output, and the median norm of each third of them."""

    names: tuple[str, ...]
    norms: tuple[float, ...]
    first: float
    middle: float
    last: float
    update: float
    """The median share of their size by which the step changed the weights of the first third."""

    @property
    def ratio(self) -> float:
        """What is left of a gradient at the input: less than 1 if it shrinks on its way."""
        return self.first / self.last if self.last else float("inf")


def depth_of(step: StepFacts, run: RunFacts) -> Depth | None:
    """None if there are too few weights, or one of the gradients is not finite."""
    order = {path: place for place, path in enumerate(dict.fromkeys(each.path for each in step.calls))}
    weights = [
        (order.get(run.parameters[name].module, -1), name, look)
        for name, look in step.parameters.items()
        if name in run.parameters
        and run.parameters[name].is_matrix
        and run.parameters[name].std > 0
        and "Embedding" not in run.parameters[name].kind
        and look.has_gradient
    ]
    called = [each for each in weights if each[0] >= 0]
    if len(called) < FEWEST or not all(look.norm < float("inf") for *_, look in called):
        return None
    called.sort(key=lambda each: each[0])
    third = len(called) // 3
    norms = [look.norm for *_, look in called]
    updates = [look.update for *_, look in called]
    return Depth(
        tuple(name for _, name, _ in called),
        tuple(norms),
        median(norms[:third]),
        median(norms[third:-third]),
        median(norms[-third:]),
        median(updates[:third]),
    )
