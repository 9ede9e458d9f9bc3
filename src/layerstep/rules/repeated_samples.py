"""Batches that come twice in a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["RepeatedSamples"]

LOOKS = 8
SHARE = 0.35
ROWS = 4


@rule("R34", "repeated-samples", severity="warning", cost="look")
class RepeatedSamples(Rule):
    """Consecutive batches are equal, in other memory, while others differ.

    Why: the workers of a data loader that draw from the same random state, or an iterable dataset that each
    worker reads from the beginning, give every batch several times. The model then sees less than it seems.
    Training on one batch only, or several steps on the same tensor, is fine.

    How to fix: seed each worker in `worker_init_fn` from `torch.initial_seed()`, and split an iterable
    dataset by `get_worker_info()`.
    """

    advice = (
        "seed each worker: worker_init_fn=lambda i: numpy.random.seed(torch.initial_seed() % 2**32)",
        "split an IterableDataset among its workers by torch.utils.data.get_worker_info()",
    )
    explains = ("overfitting", "not-learning", "plateau")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or judged(step, run) is None:
            return
        batches = list(run.samples.batches)
        pairs = [(a, b) for a, b in itertools.pairwise(batches) if b.step == a.step + 1 and b.rows >= ROWS]
        equal = [b for a, b in pairs if a.digest == b.digest and not b.is_same_tensor]
        different = len({each.digest for each in batches})
        if len(pairs) < LOOKS or len(equal) < SHARE * len(pairs) or different < 3:
            return
        model = next((call.model for call in step.forwards), "")
        yield Sign(
            f"{len(equal)} of {len(pairs)} batches are equal to the one before them, and others differ",
            Place(module=model),
            {"equal": len(equal), "compared": len(pairs)},
        )
