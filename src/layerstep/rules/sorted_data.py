"""Batches of one class after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.dynamics import entropy, judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
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
    """Each batch has few of the classes: the data come sorted by their labels.

    Why: the model learns one class, then unlearns it for the next. Each batch pulls all predictions towards
    its own class. The entropy of the labels of batches is compared with that of all labels together.

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
        self._batches: list[tuple[float, int]] = []
        self._all: Counter[int] = Counter()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        counts: Counter[int] = Counter()
        for loss in step.losses:
            for each in loss.criteria:
                if each.target is not None and each.kind in ("cross_entropy", "nll"):
                    counts.update(each.target.counts)
        total = sum(counts.values())
        if total < FEWEST or judged(step, run) is None or len(self._all) > MOST:
            return
        self._all.update(counts)
        self._batches = [*self._batches[-256:], (entropy(list(counts.values())), total)]
        whole = entropy(list(self._all.values()))
        if len(self._batches) < BATCHES or len(self._all) < 2 or not _has_one_label_each(step):
            return
        room = sum(min(whole, math.log(size)) for _, size in self._batches) / len(self._batches)
        mean = sum(each for each, _ in self._batches) / len(self._batches)
        common = max(self._all.values()) / sum(self._all.values())
        if mean < PURE * room and whole > 0.3 and common < 0.9:
            at = step.losses[-1].made_at
            yield Sign(
                f"a batch has {math.exp(mean):.1f} classes in effect, all samples {math.exp(whole):.1f}: "
                "the data are sorted",
                Place(file=at.file, line=at.line),
                {"entropy of batches": mean, "entropy of all": whole},
            )


MOST = 4096


def _has_one_label_each(step: StepFacts) -> bool:
    """Pixels and tokens of one sample resemble each other: only labels of whole samples are compared."""
    targets = [each.target for loss in step.losses for each in loss.criteria if each.target is not None]
    labels = sum(math.prod(each.shape) for each in targets)
    return bool(targets) and labels <= max(step.samples, 1) * max(len(targets), 1)
