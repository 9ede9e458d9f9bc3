"""Samples of a batch that act on each other."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.sequence_facts import LEAK
from layerstep.registry import rule

__all__ = ["SamplesMixed"]


@rule("R49", "samples-mixed", severity="info", cost="look")
class SamplesMixed(Rule):
    """The output of a sample hangs on the other samples of its batch, also in evaluation mode.

    Why: a model without batch norm, or with one in evaluation mode, treats each sample by itself. Else the
    same sample gets another answer in another batch. A recurrent layer that reads the samples as if they were
    moments does that, a norm over the batch, a wrong `view`, or a sum over the wrong dimension. It was tried
    on a copy: other samples in the second half of the batch changed the outputs of the first half. It may be
    meant, as where a discriminator compares the samples of a batch: so this is a note.

    How to fix: look at the dimensions in the module where it begins; `batch_first=True` for a recurrent layer
    or an attention that gets samples first.
    """

    advice = (
        "look at the dimensions there: batch_first=True, the dim of sums and norms, the shape of a view",
    )
    explains = ("not-learning", "plateau", "underfitting", "overfitting")

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        mixing = run.mixing
        if mixing is None or not step.is_looked_at or mixing.has_softmax or not mixing.change > LEAK:
            return
        if any(call.is_same_input for call in step.forwards if call.with_grad):
            return  # all nodes of a graph, in each step
        where = mixing.at or mixing.model
        yield Sign(
            f"other samples in the batch change the outputs of a sample; it begins in {where}",
            Place(module=where),
            {"change": mixing.change, "samples": mixing.samples},
        )
