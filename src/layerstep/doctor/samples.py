"""Which samples were trained on, with which labels, and whether batches come again. In bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from layerstep.doctor.facts import ForwardFacts, LossFacts, StepFacts

__all__ = ["Batch", "Samples"]

ROWS = 16_384
"""Samples that are remembered."""
BATCHES = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step that was looked at was trained on, by its checksums."""

    step: int
    part: int
    """Of a step that adds up the gradients of several batches: which of them, from 0 on."""
    number: int
    """Of the looks, from 1 on."""
    digest: int
    rows: int
    """Different ones."""
    size: int
    """All of them, as far as they were looked at."""
    is_same_tensor: bool
    """The model was called with the very tensor of the call before."""
    labels: Counter[int] = field(default_factory=Counter)

    def follows(self, other: Batch) -> bool:
        """Did it come right after another? Of a step all batches are seen, or none."""
        if self.step == other.step:
            return self.part == other.part + 1
        return self.step == other.step + 1 and self.part == 0


class Samples:
    """A book of samples."""

    def __init__(self) -> None:
        self.labels: dict[int, int] = {}
        """The checksum of the first target of each sample, by that of the sample."""
        self.again = 0
        """Samples that came again, in another step."""
        self.agreed = 0
        """Of these, those with the same target."""
        self.borrowed = 0
        """Those with another target that some other sample has had."""
        self.doubled = 0
        """Samples that are twice in one batch."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES)
        self.targets: Counter[int] = Counter()
        self._looks = 0

    def add(self, step: StepFacts) -> None:
        """Take in a step that was looked at."""
        calls = [call for call in step.forwards if call.with_grad and call.rows]
        if not calls:
            return
        self._looks += 1
        if _adds_up(step, calls):
            for part, (call, loss) in enumerate(zip(calls, step.losses, strict=True)):
                self._add(step, part, [call], [loss])
        else:
            self._add(step, 0, calls, step.losses)

    def _add(
        self, step: StepFacts, part: int, calls: Sequence[ForwardFacts], losses: Sequence[LossFacts]
    ) -> None:
        targets = [each.target for loss in losses for each in loss.criteria if each.target is not None]
        counts: Counter[int] = Counter()
        for target in targets:
            counts.update(target.counts)
        rows = [call.rows for call in calls]
        self.batches.append(
            Batch(
                step.number,
                part,
                self._looks,
                hash(tuple(rows)),
                sum(len(set(each)) for each in rows),
                sum(map(len, rows)),
                all(call.is_same_input for call in calls),
                counts,
            )
        )
        if len(calls) == len(targets) == 1:
            self._pair(rows[0], targets[0].rows)

    def _pair(self, rows: tuple[int, ...], labels: tuple[int, ...]) -> None:
        if len(rows) != len(labels):
            return
        self.doubled += len(rows) - len(set(rows))
        for row, label in zip(rows, labels, strict=True):
            known = self.labels.get(row)
            if known is not None:
                self.again += 1
                self.agreed += known == label
                self.borrowed += known != label and label in self.targets
            elif len(self.labels) < ROWS:
                self.labels[row] = label
            if len(self.targets) < ROWS:
                self.targets[label] += 1


def _adds_up(step: StepFacts, calls: Sequence[ForwardFacts]) -> bool:
    """Does a step add up the gradients of several batches: one model, a backward pass for each call?"""
    return len(calls) == len(step.losses) > 1 and len({call.model for call in calls}) == 1
