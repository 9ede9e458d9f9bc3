"""Gradients that die out on their way to the first layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from layerstep.doctor.depth import Depth, depth_of
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["VanishingGradients"]

SHARE = 1e-3
STILL = 1e-5
TINY = 1e-6
FALLS = 0.3
LOOKS = 8
STEPS = 20


@rule("R14", "vanishing-gradients", severity="warning", confidence="statistical", cost="always")
class VanishingGradients(Rule):
    """The gradients shrink from layer to layer, and the first layers hardly learn.

    Why: each layer multiplies the gradient by the slope of its activation and by its weights. If both are
    small, as with sigmoids in a deep network, next to nothing reaches the first layers. Biases in front of a
    batch norm have no gradient by construction and do not count. Adam and similar optimizers divide by the
    size of the gradient, so the first layers still learn: then this is only a note, unless the model does not
    learn.

    How to fix: use ReLU or GELU, residual connections and norm layers, and an initialisation that fits the
    activation.
    """

    advice = (
        "use ReLU or GELU in place of sigmoid and tanh",
        "add residual connections or norm layers",
        "initialise to fit the activation: kaiming_normal_ for ReLU, xavier_uniform_ for tanh",
    )
    explains = ("not-learning", "underfitting", "plateau", "update-too-small")

    def __init__(self) -> None:
        self._seen: dict[int, deque[Depth]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        seen = self._seen.setdefault(step.optimizer, deque(maxlen=LOOKS))
        depth = depth_of(step, run) if step.is_looked_at else None
        if depth is not None:
            seen.append(depth)
        if len(seen) < LOOKS or step.number < STEPS or (step.number % STEPS and depth is None):
            return
        ratio = median([each.ratio for each in seen])
        first = median([each.first for each in seen])
        is_still = median([each.update for each in seen]) < STILL
        if ratio < SHARE and all(map(_falls, seen)):
            is_sure = is_still or (first < TINY and ratio < SHARE / 100)
            yield Sign(
                f"the gradients of the first layers are {ratio:.2g} of those of the last",
                Place(seen[-1].names[: len(seen[-1].names) // 3]),
                {"norms from input to output": seen[-1].norms},
                severity=None if is_sure else Severity.INFO,
            )


def _falls(depth: Depth) -> bool:
    """Does it shrink all the way? A branch with a small factor in front of it is small by itself."""
    return depth.first < FALLS * depth.middle < FALLS * FALLS * depth.last
