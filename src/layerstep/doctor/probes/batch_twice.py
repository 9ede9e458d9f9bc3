"""Does the loss grow with the batch?"""

from __future__ import annotations

import torch
from torch import Tensor

from layerstep.doctor.loss_recipe import Recipe
from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial, without_dropout
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.format import number
from layerstep.views import Level

__all__ = ["batch_twice"]


@probe("batch-twice", cost="2 forwards of a copy")
def batch_twice(trial: Trial) -> Found:
    """Does the loss double when the batch is doubled?

    Each sample is given twice. A mean over the samples stays as it is; a sum doubles, and with it the
    gradients: then the learning rate fits one batch size only.
    """
    recipe = trial.call.recipe
    rows = _rows(trial)
    model = without_dropout(trial.twin())
    once = float(trial.loss(model).detach())
    constants, doubled = _constants(recipe, rows) if recipe is not None else (None, [])
    model = without_dropout(trial.twin())
    twice = float(
        trial.loss(model, constants=constants, change=lambda tensor: _double(tensor, rows)).detach()
    )
    ratio = twice / once if once else 1.0
    if abs(ratio - 2) < 0.02:
        text = f"yes: {number(once)} becomes {number(twice)}; it is a sum over the samples"
    elif abs(ratio - 1) < 0.02:
        text = f"no: it stays {number(once)}; it is a mean over the samples"
    else:
        text = f"neither: {number(once)} becomes {number(twice)}; parts of it are sums"
    figures = [("ratio", number(ratio)), ("samples", str(rows))]
    if doubled:
        figures.append(("doubled too", f"the divisor {', '.join(doubled)}, taken for a count of samples"))
    level: Level = "good" if abs(ratio - 1) < 0.02 else "info"
    return Found(
        text,
        level,
        "gave a copy each sample twice, dropout off",
        tuple(figures),
    )


def _rows(trial: Trial) -> int:
    """The size of the batch: the first dimension of the first tensor."""
    given = tensors_of((trial.call.args, trial.call.kwargs))
    return next((int(tensor.shape[0]) for tensor in given if tensor.ndim), 1)


def _double(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, tensor]) if tensor.ndim and tensor.shape[0] == rows else tensor


def _constants(recipe: Recipe, rows: int) -> tuple[list[Tensor], list[str]]:
    """Targets twice; a divisor that is a whole number of samples or more counts twice, too."""
    made, doubled = [], []
    for each in recipe.constants:
        value = each.value
        if value.ndim and value.shape[0] % rows == 0 and (each.is_target or value.shape[0] > 1):
            made.append(torch.cat([value, value]))
        elif _is_count(value, rows):
            made.append(value * 2)
            doubled.append(number(float(value)))
        else:
            made.append(value)
    return made, doubled


def _is_count(value: Tensor, rows: int) -> bool:
    return value.numel() == 1 and rows > 1 and float(value) >= rows and float(value) % 1 == 0
