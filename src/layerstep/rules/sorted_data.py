"""Batches of one class after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from layerstep.doctor.dynamics import entropy, judged
from layerstep.doctor.facts import CriterionFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["SortedData"]

BATCHES = 10
PURE = 0.35
"""The entropy of the labels of a batch, of that of all labels."""
FEWEST = 8


@rule("R33", "sorted-data", severity="warning", confidence="statistical", cost="look")
class SortedData(Rule):
    """Each batch has only a few of the classes: the data are sorted by their labels.

    Why: the model learns one class, then unlearns it for the next. Each batch pulls all predictions towards
    its own class. The rule compares the entropy of the labels in a batch with that of all labels. For targets
    that are numbers it compares the variance; this is only a note.

    How to fix: shuffle: `DataLoader(…, shuffle=True)`.
    """

    advice = ("shuffle the samples: DataLoader(…, shuffle=True)",)
    explains = (
        "constant-labels",
        "loss-spike",
        "oscillating",
        "diverging",
        "not-learning",
        "plateau",
        "overfitting",
        "underfitting",
        "exploding-gradients",
        "dead-units",
    )

    def __init__(self) -> None:
        self._tasks: dict[int, _Batches] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if judged(step, run) is None or not step.losses:
            return
        for place in range(max(len(loss.criteria) for loss in step.losses)):
            kinds = [loss.criteria[place] for loss in step.losses if len(loss.criteria) > place]
            task = self._tasks.setdefault(place, _Batches())
            words = task.add_classes(kinds, step) or task.add_numbers(kinds, step)
            if words is not None:
                text, numbers, severity = words
                at = step.losses[-1].made_at
                yield Sign(text, Place(file=at.file, line=at.line), numbers, severity=severity)


_Words = tuple[str, dict[str, float], Severity | None]


class _Batches:
    """The labels of one loss function, batch by batch."""

    def __init__(self) -> None:
        self._batches: list[tuple[float, int]] = []
        self._all: Counter[int] = Counter()
        self._numbers: list[tuple[float, float]] = []

    def add_classes(self, criteria: list[CriterionFacts], step: StepFacts) -> _Words | None:
        counts: Counter[int] = Counter()
        for each in criteria:
            counts.update(_classes(each))
        total = sum(counts.values())
        if total < FEWEST or len(self._all) > MOST:
            return None
        self._all.update(counts)
        self._batches = [*self._batches[-256:], (entropy(list(counts.values())), total)]
        whole = entropy(list(self._all.values()))
        if len(self._batches) < BATCHES or len(self._all) < 2 or not _has_one_label_each(criteria, step):
            return None
        room = sum(min(whole, math.log(size)) for _, size in self._batches) / len(self._batches)
        mean = sum(each for each, _ in self._batches) / len(self._batches)
        common = max(self._all.values()) / sum(self._all.values())
        if not (mean < PURE * room and whole > 0.3 and common < 0.9):
            return None
        text = f"a batch has {math.exp(mean):.1f} classes in effect, all samples {math.exp(whole):.1f}"
        return f"{text}: the data are sorted", {"entropy of batches": mean, "entropy of all": whole}, None

    def add_numbers(self, criteria: list[CriterionFacts], step: StepFacts) -> _Words | None:
        """Targets that are numbers: those of a batch lie close together, those of all do not. It may be
        meant, as where each batch is a task of its own, so it is a note.
        """
        given = [each.target for each in criteria if each.kind in _NUMBERS and each.target is not None]
        if not given or not _has_one_label_each(criteria, step) or math.prod(given[0].shape) < FEWEST:
            return None
        self._numbers = [*self._numbers[-256:], *((each.mean, each.std) for each in given)]
        means = [mean for mean, _ in self._numbers]
        within = sum(std * std for _, std in self._numbers) / len(means)
        middle = sum(means) / len(means)
        between = sum((mean - middle) ** 2 for mean in means) / len(means)
        if not between > 1e-8 * middle * middle:  # one number in all batches
            return None
        if len(means) < BATCHES or within > CLOSE * (within + between):
            return None
        text = f"the targets of a batch have a spread of {within**0.5:.3g}, all have {between**0.5:.3g}"
        numbers = {"spread in batches": within**0.5, "spread of batches": between**0.5}
        return f"{text}: the data are sorted", numbers, Severity.INFO


def _classes(criterion: CriterionFacts) -> Mapping[int, int]:
    """How often each class comes; targets of 0 and 1 are two classes."""
    target = criterion.target
    if target is None:
        return {}
    if criterion.kind in ("cross_entropy", "nll"):
        return target.counts
    if criterion.kind not in ("bce", "bce_logits") or target.distinct > 2 or target.floor:
        return {}
    count = math.prod(target.shape)
    ones = round(target.mean * count)
    return {label: times for label, times in ((1, ones), (0, count - ones)) if times}


MOST = 4096
CLOSE = 0.1
"""The share of the variance of all targets that a batch has."""
_NUMBERS = frozenset(["mse", "l1", "smooth_l1", "huber"])


def _has_one_label_each(criteria: list[CriterionFacts], step: StepFacts) -> bool:
    """Pixels and tokens of one sample resemble each other: only labels of whole samples are compared."""
    targets = [each.target for each in criteria if each.target is not None]
    labels = sum(math.prod(each.shape) for each in targets)
    return bool(targets) and labels <= max(step.samples, 1)
