"""Images whose normalisation was applied twice."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["NormalisedTwice"]

_KNOWN = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "CIFAR-10, other": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)),
    "CIFAR-100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "MNIST": ((0.1307,), (0.3081,)),
    "FashionMNIST": ((0.286,), (0.353,)),
    "0.5": ((0.5,), (0.5,)),
}
"""Means and standard deviations that are in use."""
NEAR = 0.01
LOOKS = 5


@rule("R44", "normalised-twice", severity="warning", cost="look")
class NormalisedTwice(Rule):
    """Images reach exactly the range that a known normalisation gives when it is applied twice.

    Why: the second one shifts and stretches what was right already: the model gets inputs of a mean and
    spread that it was not made for. A pretrained model gets other inputs than in its training. Black and
    white pixels tell: their values are known for each mean and standard deviation.

    How to fix: normalise in one place: in the dataset or in the model.
    """

    advice = ("normalise in one place: in the dataset or in the model",)
    explains = (
        "input-scale",
        "dead-units",
        "saturated-units",
        "diverging",
        "not-learning",
        "plateau",
        "underfitting",
        "init-scale",
        "update-too-large",
    )

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float, int]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for given in step.layer_inputs:
            if len(given.shape) != 4 or given.shape[1] not in (1, 3):
                continue
            low, high, looks = self._ranges.get(given.name, (math.inf, -math.inf, 0))
            low, high, looks = min(low, given.low), max(high, given.high), looks + 1
            self._ranges[given.name] = (low, high, looks)
            name = _twice(low, high) if looks >= LOOKS else ""
            if name:
                yield Sign(
                    f"{given.name} gets images from {low:.4g} to {high:.4g}: those of {name} applied twice",
                    Place(module=given.name),
                    {"lowest": low, "highest": high},
                )


def _twice(low: float, high: float) -> str:
    """The normalisation whose second use gives this range."""
    if low == 0 and 0.9 / 255 < high <= 1.001 / 255:
        return "a division by 255"
    for name, (means, stds) in _KNOWN.items():
        pairs = list(zip(means, stds, strict=True))
        black = min(((0 - mean) / std - mean) / std for mean, std in pairs)
        white = max(((1 - mean) / std - mean) / std for mean, std in pairs)
        if abs(low - black) < NEAR * abs(black) and abs(high - white) < NEAR * abs(white):
            return f"the mean and deviation of {name}" if name != "0.5" else "a mean and deviation of 0.5"
    return ""
