"""Is an evaluation repeatable?"""

from __future__ import annotations

import torch

from layerstep.doctor.probe import Found, probe
from layerstep.doctor.traced import first_difference, outputs_differ, trace
from layerstep.doctor.trial import Trial
from layerstep.tensors.format import number

__all__ = ["eval_twice"]


@probe("eval-twice", cost="2 forwards of a copy", needs_loss=False)
def eval_twice(trial: Trial) -> Found:
    """Do two evaluations of the same batch give the same output?

    In evaluation mode nothing should be random. `F.dropout(x)` without `training=self.training` drops values
    all the same, and so does noise that a module adds in each forward.
    """
    model = trial.twin(train=False)
    with torch.no_grad():
        first = trace(model, lambda: trial.output(model))
        second = trace(model, lambda: trial.output(model))
    gap = outputs_differ(first.output, second.output)
    did = "called a copy twice in evaluation mode with the same batch"
    if gap == 0:
        return Found("yes: both outputs are equal, bit for bit", "good", did)
    path = first_difference(first, second)
    where = f"it begins in {path}" if path else "it begins in the model's own forward"
    return Found(
        f"no: the outputs differ by up to {number(gap)}; {where}",
        "warn",
        did,
        (("likely", "F.dropout without training=self.training, noise, or a module that stays in train()"),),
    )
