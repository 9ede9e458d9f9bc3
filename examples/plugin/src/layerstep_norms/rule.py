"""A rule of the doctor: the training has one sample in a batch."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule


@rule("NORMS1", "batch-of-one", severity="warning", confidence="exact", cost="always")
class BatchOfOne(Rule):
    """Every batch has one sample.

    Why: the gradient of one sample is noisy, and a norm over the batch has nothing to compare.

    How to fix: raise the batch size.
    """

    advice = ("raise the batch size",)
    patience = 3

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        calls = [call for call in step.forwards if call.with_grad]
        if calls and all(call.samples == 1 for call in calls):
            yield Sign("every batch has one sample", Place(module=calls[0].model), {"samples": step.samples})
