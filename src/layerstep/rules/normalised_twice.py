"""Images whose normalisation was applied twice."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Confidence, Place, Severity, Sign
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
CLOSE = 0.15
"""How near the mean and spread must be to what a mean and deviation of one's own give."""


@rule("R44", "normalised-twice", severity="warning", cost="look")
class NormalisedTwice(Rule):
    """The images were normalised twice.

    Why: the second normalisation shifts and stretches values that were already right. A pretrained model then
    gets other inputs than in its training. The rule recognises the values of black and white pixels, which
    are known for each common mean and standard deviation. For other numbers it works them out from the range,
    mean and std of the images; this is only a note.

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
        self._means: dict[str, tuple[float, float]] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for given in step.layer_inputs:
            if len(given.shape) != 4 or given.shape[1] not in (1, 3):
                continue
            low, high, looks = self._ranges.get(given.name, (math.inf, -math.inf, 0))
            low, high, looks = min(low, given.low), max(high, given.high), looks + 1
            self._ranges[given.name] = (low, high, looks)
            mean, square = self._means.get(given.name, (0.0, 0.0))
            mean, square = mean + given.mean, square + given.std**2 + given.mean**2
            self._means[given.name] = (mean, square)
            if looks < LOOKS:
                continue
            name, own = _twice(low, high), _own(low, high, mean / looks, square / looks)
            if name or own:
                yield Sign(
                    f"{given.name} gets images from {low:.4g} to {high:.4g}: those of {name or own} "
                    "applied twice",
                    Place(module=given.name),
                    {"lowest": low, "highest": high},
                    severity=None if name else Severity.INFO,
                    confidence=None if name else Confidence.STATISTICAL,
                )


def _own(low: float, high: float, mean: float, square: float) -> str:
    """The mean and deviation whose second use gives this range, if it also gives the mean and the spread.

    Applied once they give a mean of 0 and a spread of 1, applied twice -mean / std and 1 / std. The range
    tells both numbers; that the spread is the root of the range is then no chance.
    """
    if not high > low:
        return ""
    std = (high - low) ** -0.5
    middle, spread = -low * std * std / (1 + std), math.sqrt(max(square - mean * mean, 0.0))
    if not (0.1 < middle < 0.9 and 0.1 < std < 0.5):
        return ""
    is_spread, is_mean = abs(spread * std - 1) < CLOSE, abs(mean * std + middle) < CLOSE * middle
    return f"mean {middle:.2f} and deviation {std:.2f}" if is_spread and is_mean else ""


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
