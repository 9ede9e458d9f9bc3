"""Does the output depend on the input?"""

from __future__ import annotations

import torch
from torch import Tensor

from layerstep.doctor.probe import Found, probe
from layerstep.doctor.traced import largest, outputs_differ
from layerstep.doctor.trial import Trial
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.format import number

__all__ = ["zero_input"]

NOTHING = 1e-6
"""A change of the output below this share of its size is none."""


@probe("zero-input", cost="2 to 4 forwards of a copy", needs_loss=False)
def zero_input(trial: Trial) -> Found:
    """Does the output change when the input is all zeros?

    If it does not, no information passes from the input to the output: an input that is multiplied by zero,
    dead units, a detached or overwritten tensor. The losses with and without the input say what the input is
    worth to the model so far.
    """
    model = trial.twin(train=False)
    with torch.no_grad():
        real = trial.output(model)
        blank = trial.output(model, torch.zeros_like)
    gap, size = outputs_differ(real, blank), largest(real)
    figures = [("largest output", number(size)), ("largest change", number(gap))]
    if trial.call.recipe is not None and not trial.call.recipe.is_output:
        with_input = float(trial.loss(model).detach())
        without = float(trial.loss(model, change=torch.zeros_like).detach())
        figures.append(("loss", f"{number(with_input)} with the input, {number(without)} with zeros"))
    did = "called a copy in evaluation mode with the batch, and with zeros in its place"
    if gap <= NOTHING * max(size, 1e-30):
        return Found("no: the output is the same without the input", "warn", did, tuple(figures))
    if (same := _samples_alike(real)) is not None and same <= NOTHING * max(size, 1e-30):
        text = "hardly: the output changes with zeros, but is the same for all samples of the batch"
        return Found(text, "warn", did, tuple(figures))
    return Found(f"yes: it changes by up to {number(gap)}", "good", did, tuple(figures))


def _samples_alike(output: object) -> float | None:
    """The largest difference between the first sample and the others; None where there is one only."""
    made = [t for t in tensors_of(output) if isinstance(t, Tensor) and t.is_floating_point() and t.ndim > 1]
    if not made or made[0].shape[0] < 2:
        return None
    return float((made[0][1:] - made[0][:1]).abs().max())
