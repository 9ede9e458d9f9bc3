"""What the doctor has seen of losses, loss functions and targets, as plain numbers and names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from layerstep.doctor.finding import Place

__all__ = ["CriterionFacts", "LossFacts", "OutlierFacts", "TargetFacts"]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What the loss compares with."""

    dtype: str
    shape: tuple[int, ...]
    distinct: int
    """How many different values (of a sample)."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Of class labels: how often each comes, those that are ignored left out."""
    ignored: int = 0
    mean: float = 0.0
    std: float = 0.0
    shift: int | None = None
    """Of token labels: the labels are the input moved by so many places. None: they are something else."""
    guess: float = math.nan
    """Of numbers: the loss of the best single guess for the whole batch."""
    floor: float = 0.0
    """Of targets that are probabilities: their own entropy, which no binary cross-entropy falls below."""
    rows: tuple[int, ...] = ()
    """A checksum of the target of each of the first samples."""

    @property
    def counted(self) -> int:
        """How many labels there are that are not ignored."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class CriterionFacts:
    """A loss function in the graph behind the loss."""

    kind: str
    """`cross_entropy`, `nll`, `bce`, `bce_logits`, `mse`, `l1`, `smooth_l1`, `huber`, `kl_div`."""
    reduction: str
    """`mean`, `sum`, `none`."""
    classes: int = 0
    input_from: str = ""
    """What made its input: `softmax`, `log_softmax`, `sigmoid`, `relu`, or the name of another operation."""
    enlarged: tuple[tuple[int, ...], ...] = ()
    """The shape of the prediction and the larger one that broadcasting made of it."""
    target: TargetFacts | None = None
    low: float = 0.0
    high: float = 0.0
    """The range of its input, where it is kept."""
    spread: float = 0.0
    """The standard deviation of its input, where it is kept."""
    is_alone: bool = False
    """Is it the whole loss, up to a factor?"""
    is_weighted: bool = False
    """Do classes or elements have weights?"""
    width: int = 0
    """The outputs of the last layer, as far as the graph tells."""
    factor: float = math.nan
    """What it is multiplied by before other terms of the loss are added. NaN: that is not known."""
    smoothing: float = 0.0
    """How much of the labels is spread over all classes."""
    beside: tuple[tuple[int, ...], int] | None = None
    """The shape of its softmax and the dimension it runs over, if that is not the one of the classes."""


@dataclass(frozen=True, slots=True)
class OutlierFacts:
    """A sample whose values are far larger than those of all others of its batch."""

    name: str
    """`the target`, or the input."""
    row: int
    size: float
    """Its largest magnitude."""
    next: float
    """That of the sample after it."""


@dataclass(frozen=True, slots=True)
class LossFacts:
    """One `backward()`: the loss it began at."""

    value: float
    backward_at: Place
    """The line of `backward()`."""
    made_at: Place
    """The line that made the loss, where it can be told from the source."""
    scale: float = 1.0
    """The factor by which the loss was multiplied at the end: 1/4, or that of a gradient scaler."""
    criteria: tuple[CriterionFacts, ...] = ()
    is_looked_at: bool = False
    over_batch: tuple[int, ...] = ()
    """The shape of a matrix whose softmax, near the loss, runs over its first dimension."""
    is_turned: bool = False
    """Is there a minus between the loss function and the loss?"""
    is_whole: bool = False
    """Is the loss the sum of these loss functions, each with its factor, and of nothing else?"""
    lowers_likelihood: bool = False
    """Are log-probabilities of choices, times weights of their own, added with a plus?"""
    origin: Place | None = None
    """Of a loss that is not finite: where that began, as far as the graph and the parameters tell."""
    origin_words: str = ""
    outlier: OutlierFacts | None = None
    """Of a loss far above the ones before it: the sample that stands out of its batch, if one does."""
