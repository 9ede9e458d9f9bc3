"""How a loss moves: windows over its series, and what always guessing the commonest labels would give."""

from __future__ import annotations

import math
from typing import NamedTuple

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.run_facts import OptimizerRun, RunFacts, Task
from layerstep.doctor.series import Series, mad, median

__all__ = [
    "Guess",
    "Windows",
    "best_guess",
    "entropy",
    "falls_steadily",
    "is_bounded",
    "judged",
    "targets_drift",
    "windows_of",
]

_SQUARES = ("mse",)
_FLATTER = ("l1", "smooth_l1", "huber")
FEW = 16
"""Targets of a batch: the median of fewer fits them too well."""
_PROBABILITIES = ("bce", "bce_logits")
_CLASSES = ("cross_entropy", "nll")
SURE = 3.0
"""Standard errors: a slope of chance alone is so large once in 700 times."""
LABELS = 100
"""From fewer the distribution of the labels cannot be told."""
_BOUNDED = frozenset(["cross_entropy", "mse", "l1", "smooth_l1", "huber", "bce", "bce_logits"])
"""Loss functions that cannot fall below zero."""


class Guess(NamedTuple):
    """The loss of a model that ignores its input, at best."""

    loss: float
    words: str
    floor: float = 0.0
    """What no model can fall below."""

    def share(self, loss: float) -> float:
        """A loss between the floor, 0, and that of guessing, 1."""
        return (loss - self.floor) / max(self.loss - self.floor, 1e-12)


class Windows(NamedTuple):
    """The medians of parts of a loss series, and its noise."""

    first: float
    before: float
    """Of the window before the last one."""
    last: float
    best: float
    noise: float
    """The scatter around the median in the last window."""
    length: int


def judged(step: StepFacts, run: RunFacts) -> OptimizerRun | None:
    """The series to judge. None where several optimizers take turns, as their losses work against each other,
    and where the optimizer makes the loss large: the rules ask whether it falls.
    """
    if step.is_climbing:
        return None
    turns = [each for each in run.optimizers.values() if len(each.loss)]
    return turns[0] if len(turns) == 1 and turns[0].number == step.optimizer else None


def is_bounded(optimizer: OptimizerRun) -> bool:
    """Is the loss one known function that cannot be negative, of targets that come with the data?"""
    known = optimizer.criterion
    return known is not None and known.is_alone and known.kind in _BOUNDED


def targets_drift(optimizer: OptimizerRun) -> bool:
    """Do the targets change while the model learns, as those of reinforcement learning do?"""
    means, stds = optimizer.target_mean, optimizer.target_std
    if len(means) < 6:
        return False
    early, late = median(means.head(5)), median(means.tail(5))
    scale = max(median(stds.head(5)), median(stds.tail(5)), 1e-12)
    spread = mad(means.head(5)) + 1e-12
    grown = max(median(stds.tail(5)), 1e-12) / max(median(stds.head(5)), 1e-12)
    return abs(late - early) > max(0.5 * scale, 4 * spread) or not 0.5 < grown < 2.0


def windows_of(optimizer: OptimizerRun, *, least: int = 100) -> Windows | None:
    """The windows of a loss of at least so many steps: a fifth of them each, 20 to 128."""
    series = optimizer.loss
    if len(series) < least:
        return None
    if optimizer.windows is None or optimizer.windows[0] != len(series):
        optimizer.windows = (len(series), _windows(series))
    found = optimizer.windows[1]
    return Windows(*found) if found is not None else None


def _windows(series: Series) -> tuple[float, float, float, float, float, int] | None:
    length = min(max(20, len(series) // 5), 128)
    head, tail = series.head(max(10, min(length, len(series) // 10))), series.tail(2 * length)
    if len(tail) < 2 * length or not head:
        return None
    everything = [value for value in series.values() if math.isfinite(value)]
    parts = [everything[at : at + length] for at in range(0, len(everything) - length + 1, length)]
    best = min(median(part) for part in parts)
    return median(head), median(tail[:length]), median(tail[length:]), best, mad(tail[length:]), length


def falls_steadily(optimizer: OptimizerRun) -> bool:
    """Does the loss still fall, however slowly? A line through its second half must fall, clearly beyond the
    scatter around it, and so must one through the last quarter at all: else the fall is over.
    """
    values = [value for _, value in optimizer.loss.recent if math.isfinite(value)]
    half = values[-max(len(optimizer.loss) // 2, 50) :]
    slope, error = _line(half)
    return slope < -SURE * error and _line(half[len(half) // 2 :])[0] < 0


def _line(values: list[float]) -> tuple[float, float]:
    """The slope of a line through values, by least squares, and its standard error."""
    count = len(values)
    if count < 10:
        return 0.0, 0.0
    middle, mean = (count - 1) / 2, sum(values) / count
    width = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / width
    rest = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope, math.sqrt(rest / (count - 2) / width)


def best_guess(optimizer: OptimizerRun) -> Guess | None:
    """What the loss would be without looking at the input; None where the loss is not one that is known.

    Of a sum of several loss functions it is the sum of what each would be.
    """
    tasks = optimizer.tasks
    if len(tasks) == 1 and tasks[0].criterion.is_alone:
        return _guess(tasks[0])
    if not tasks or not optimizer.is_whole or not all(each.criterion.factor > 0 for each in tasks):
        return None
    parts = [(each.criterion.factor, _guess(each)) for each in tasks]
    known = [(factor, guess) for factor, guess in parts if guess is not None]
    if len(known) < len(parts):
        return None
    words = f"always guessing, in all {len(known)} parts of it,"
    loss = sum(factor * guess.loss for factor, guess in known)
    return Guess(loss, words, sum(factor * guess.floor for factor, guess in known))


def _guess(task: Task) -> Guess | None:
    known = task.criterion
    if known.is_weighted or known.target is None:
        return None
    count = known.target.counted or math.prod(known.target.shape)
    times = {"mean": 1.0, "sum": float(count)}.get(known.reduction)
    if times is None:
        return None
    labels = sum(task.labels.values())
    if known.kind in _CLASSES and labels >= max(LABELS, 20 * len(task.labels)):
        return _of_classes(task, times)
    means = task.mean.values()
    if len(means) * math.prod(known.target.shape) < LABELS:
        return None
    middle = sum(means) / len(means)
    if known.kind in _SQUARES:
        within = sum(std * std for std in task.std.values()) / len(means)
        between = sum((mean - middle) ** 2 for mean in means) / len(means)
        return Guess(times * (within + between), "always guessing the mean target")
    if known.kind in _FLATTER and math.prod(known.target.shape) >= FEW:
        guess = sum(task.guess.values()) / len(means)
        return Guess(times * guess, "always guessing the median target") if math.isfinite(guess) else None
    if known.kind in _PROBABILITIES and 0 < middle < 1:
        guessed = -middle * math.log(middle) - (1 - middle) * math.log(1 - middle)
        floor = sum(task.floor.values()) / len(means)
        return Guess(times * guessed, "always guessing the mean target", times * floor)
    return None


def _of_classes(task: Task, times: float) -> Guess:
    """With label smoothing a part of each label is spread over all classes."""
    words, spread = "always guessing the commonest labels", task.criterion.smoothing
    plain = entropy(list(task.labels.values()))
    if not spread or task.criterion.classes < 2:
        return Guess(times * plain, words)
    classes, total = task.criterion.classes, sum(task.labels.values())
    shares = [(1 - spread) * count / total + spread / classes for count in task.labels.values()]
    shares += [spread / classes] * (classes - len(shares))
    top = 1 - spread + spread / classes
    floor = -top * math.log(top) - (classes - 1) * spread / classes * math.log(spread / classes)
    return Guess(times * -sum(share * math.log(share) for share in shares), words, times * floor)


def entropy(counts: list[int]) -> float:
    """In nats; a little is added for the labels that a small sample has not shown."""
    total = sum(counts)
    plain = -sum(count / total * math.log(count / total) for count in counts if count)
    return plain + (len(counts) - 1) / (2 * total)
