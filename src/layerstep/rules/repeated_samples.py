"""Batches that come again and again, and samples that fill a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.samples import Batch
from layerstep.registry import rule

__all__ = ["RepeatedSamples"]

LOOKS = 8
SHARE = 0.35
ROWS = 4
STEPS = 30
VALUES = 8
MIXED = 0.85
"""The share of different samples in a batch."""
AGAIN = 8
"""How often a sample has come, on average."""


@rule("R34", "repeated-samples", severity="warning", cost="look")
class RepeatedSamples(Rule):
    """Batches are equal to the ones before them, or all samples of a batch are equal.

    Why: the workers of a data loader that draw from the same random state, or an iterable dataset that each
    worker reads from the beginning, give every batch several times. The model then sees fewer samples than
    you think. Several steps on the same tensor are fine. It is only a note if every step has the same batch,
    or if a batch repeats one or a few samples: this may be a test, or there may be no more data.

    How to fix: seed each worker in `worker_init_fn` from `torch.initial_seed()`, and split an iterable
    dataset by `get_worker_info()`. Take a new batch in each step, and see that a dataset uses its index.
    """

    advice = (
        "seed each worker: worker_init_fn=lambda i: numpy.random.seed(torch.initial_seed() % 2**32)",
        "take a new batch in each step, and see that the dataset uses its index",
        "split an IterableDataset among its workers by torch.utils.data.get_worker_info()",
    )
    explains = ("constant-labels", "sorted-data")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or judged(step, run) is None:
            return
        batches = list(run.samples.batches)
        found = _twice(batches) or _always(batches) or (_few(batches, run) if _is_long(step) else None)
        if found is None:
            return
        text, numbers, severity, explains = found
        model = next((call.model for call in step.forwards), "")
        at = run.optimizer(step.optimizer).made_at
        where = Place(module=model, file=at.file, line=at.line)
        yield Sign(text, where, numbers, severity=severity, explains=explains)


_Found = tuple[str, dict[str, float], Severity | None, tuple[str, ...]] | None
_FOLLOWS = ("overfitting", "not-learning", "plateau")
"""What follows if the program believes that the batches differ."""


def _twice(batches: list[Batch]) -> _Found:
    """Some batches come twice in a row, in other memory, while others differ."""
    pairs = [(a, b) for a, b in itertools.pairwise(batches) if b.follows(a) and b.rows >= ROWS]
    equal = [b for a, b in pairs if a.digest == b.digest and not b.is_same_tensor]
    different = len({each.digest for each in batches})
    if len(pairs) < LOOKS or len(equal) < SHARE * len(pairs) or different < 3:
        return None
    text = f"{len(equal)} of {len(pairs)} batches are equal to the one before them, and others differ"
    return text, {"equal": len(equal), "compared": len(pairs)}, None, _FOLLOWS


def _is_long(step: StepFacts) -> bool:
    """Has a sample so many values that equal ones are one sample, and not equal by chance?"""
    return max((call.values for call in step.forwards), default=0) >= VALUES


def _few(batches: list[Batch], run: RunFacts) -> _Found:
    """The same few samples fill all batches, several times in each: a dataset that does not use its index.

    An epoch over distinct samples has each of them once, so that a batch has none twice.
    """
    size, rows = sum(each.size for each in batches), sum(each.rows for each in batches)
    known, seen = len(run.trained_rows), sum(run.trained_rows.values())
    if len(batches) < LOOKS or batches[-1].step < STEPS or rows > MIXED * size or seen < AGAIN * known:
        return None
    text = f"{seen} samples that were looked at are {known} different ones, several of them in each batch"
    return text, {"samples": seen, "different": known}, Severity.INFO, _FOLLOWS


def _always(batches: list[Batch]) -> _Found:
    """Every batch is the same one, or a single sample fills it."""
    if len(batches) < LOOKS or batches[-1].step < STEPS:
        return None
    last, count = batches[-1], len(batches)
    if last.size >= ROWS and all(each.rows == 1 < each.size for each in batches):
        text = f"the {last.size} samples of a batch are all equal"
        return text, {"batches": count}, Severity.INFO, _FOLLOWS
    if all(each.digest == last.digest for each in batches):
        text = f"every step is trained on the same batch of {last.size}"
        # One tensor in all steps is the whole of the data, and known to be; a batch that a loader made again
        # and again is not.
        is_whole = all(each.is_same_tensor for each in batches[1:])
        explains = () if is_whole else _FOLLOWS
        return text, {"samples": last.size, "batches": count}, Severity.INFO, explains
    return None
