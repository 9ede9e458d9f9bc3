"""A softmax over another dimension than that of the classes."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["SoftmaxOverBatch"]


@rule("R46", "softmax-over-batch", severity="error", cost="look")
class SoftmaxOverBatch(Rule):
    """The softmax before the loss runs over the samples or the positions, not over the classes.

    Why: with `dim=0` the probabilities of one class sum to 1 over the batch. The samples compete with each
    other, and the classes of one sample do not. `dim=1` of (batch, time, classes) does the same over time. An
    attention over the samples in place of the tokens does it inside the model: it was tried on a copy, in
    which other samples in the batch change the outputs of a sample.

    How to fix: `dim=-1`, or `cross_entropy` on the logits; `batch_first=True` for an attention of torch.
    """

    advice = ("take the softmax over the last dimension: dim=-1; or use cross_entropy on the logits",)
    explains = (
        "not-learning",
        "plateau",
        "underfitting",
        "bad-initial-loss",
        "loss-input-is-probability",
        "causality-leak",
        "padding-attended",
    )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        mixing = run.mixing
        if mixing is not None and step.is_looked_at and mixing.has_softmax and not _is_all_data(step):
            yield Sign(
                f"other samples in the batch change the outputs of a sample, and a softmax runs over all "
                f"{mixing.samples}; it begins in {mixing.at or mixing.model}",
                Place(module=mixing.at or mixing.model),
                {"change": mixing.change, "samples": mixing.samples},
                advice=("take the softmax of an attention over the tokens: dim=-1, or batch_first=True",),
            )
        for loss in step.losses:
            if loss.over_batch and loss.over_batch[0] == _samples(step):
                rows, columns = loss.over_batch
                yield Sign(
                    f"the softmax of ({rows}, {columns}) runs over {rows} samples, not {columns} classes",
                    Place(file=loss.made_at.file, line=loss.made_at.line),
                    {"shape": str(loss.over_batch)},
                )
                continue
            for shape, dim in (each.beside for each in loss.criteria if each.beside is not None):
                yield Sign(
                    f"the softmax of {shape} runs over the {shape[dim]} values of dimension {dim}, and the "
                    "classes of the loss lie in another",
                    Place(file=loss.made_at.file, line=loss.made_at.line),
                    {"shape": str(shape), "dimension": dim},
                )


def _is_all_data(step: StepFacts) -> bool:
    """Is the model called with the very same tensor in each step, as with all nodes of a graph?"""
    return any(call.is_same_input for call in step.forwards if call.with_grad)


def _samples(step: StepFacts) -> int:
    calls = [call.samples for call in step.forwards if call.with_grad]
    return calls[-1] if calls else 0
