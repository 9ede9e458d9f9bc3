"""Do the labels belong to the inputs?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial, without_dropout
from layerstep.errors import UserError
from layerstep.tensors.format import number
from layerstep.views import Level, Plot

__all__ = ["permuted_labels"]

STEPS = 40
RATE = 1e-3
TRIES = 3
CLEARLY, HARDLY = 0.9, 0.98
"""The mean loss with the true labels, as a share of that with permuted ones."""
_NAMES = ("labels", "label", "targets", "target", "y", "decoder_labels")


@probe("permuted-labels", cost=f"{1 + TRIES} × {STEPS} training steps of copies")
def permuted_labels(trial: Trial) -> Found:
    """Does the loss tell the right labels from wrong ones?

    One copy learns the batch with its labels, others with the labels dealt out anew. True labels are learned
    faster, because similar inputs have similar labels. If there is no difference, the labels may be shuffled
    against the inputs, or the batch is too small to tell.
    """
    deal = _dealer(trial)
    true = _curve(trial, trial.loss)
    others = [_curve(trial, deal(order)) for order in range(TRIES) if trial.has_time]
    length = min(map(len, (true, *others)))
    if not others or length < 2:
        raise UserError("a copy could not be trained on the batch: its loss is not finite")
    wrong = [sum(losses[step] for losses in others) / len(others) for step in range(length)]
    mean, mean_wrong = sum(true[:length]) / length, sum(wrong) / length
    share = (
        mean / mean_wrong
        if mean_wrong > 0 and mean > 0
        else 1 - (mean_wrong - mean) / (abs(mean_wrong) or 1.0)
    )
    numbers = f"mean loss {number(mean)} with the labels, {number(mean_wrong)} with permuted ones"
    level: Level
    if share < CLEARLY:
        text, level = f"yes: {numbers}", "good"
    elif share < HARDLY:
        text, level = f"a little: {numbers}", "info"
    else:
        text, level = f"no: {numbers}; are the labels in the order of the inputs?", "warn"
    plot = Plot(
        "line",
        (tuple(true[:length]), tuple(wrong)),
        title="loss of the copies",
        names=("labels", "permuted"),
        x_label="step",
    )
    did = f"trained copies on one batch with its labels and with {len(others)} permutations of them"
    return Found(text, level, did, plot=plot)


def _curve(trial: Trial, loss_of: Callable[[nn.Module], Tensor]) -> list[float]:
    model = without_dropout(trial.twin())
    return trial.learn(model, steps=STEPS, rate=lambda step: RATE, loss_of=loss_of)


def _dealer(trial: Trial) -> Callable[[int], Callable[[nn.Module], Tensor]]:
    """For a number, the loss with labels dealt out anew."""
    recipe = trial.call.recipe
    if recipe is None or recipe.targets:
        constants = list(recipe.constants) if recipe is not None else []
        if recipe is not None:
            _check(recipe.targets)

        def dealt(order: int) -> Callable[[nn.Module], Tensor]:
            values = [_permuted(each.value, order) if each.is_target else each.value for each in constants]
            return lambda model: trial.loss(model, constants=values)

        return dealt
    labels = _label_arguments(trial)
    _check(labels)
    sizes = [(tuple(each.shape), each.dtype) for each in labels]

    def change(order: int) -> Callable[[nn.Module], Tensor]:
        def apply(tensor: Tensor) -> Tensor:
            same = any(
                (tuple(tensor.shape), tensor.dtype) == size and torch.equal(tensor, label)
                for size, label in zip(sizes, labels, strict=True)
            )
            return _permuted(tensor, order) if same else tensor

        return lambda model: trial.loss(model, change=apply)

    return change


def _label_arguments(trial: Trial) -> list[Tensor]:
    """The labels among the arguments of a model that makes its own loss."""
    args, kwargs = trial.call.arguments()
    try:
        given = inspect.signature(trial.call.module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = kwargs
    found = [value for name, value in given.items() if name in _NAMES and is_tensor(value)]
    if not found:
        raise UserError("it is not known which argument of the model holds the labels")
    inputs = [value for name, value in given.items() if name not in _NAMES and is_tensor(value)]
    if any(one.shape == other.shape and torch.equal(one, other) for one in found for other in inputs):
        raise UserError("the labels are the inputs: permuted, they would still be those of other inputs")
    return found


def _permuted(value: Tensor, order: int) -> Tensor:
    generator = torch.Generator().manual_seed(order + 1)
    return value[torch.randperm(value.shape[0], generator=generator).to(value.device)]


def _check(targets: Sequence[Tensor]) -> None:
    if all(each.ndim == 0 or each.shape[0] < 4 for each in targets):
        raise UserError("the batch has fewer than 4 labels: too few to permute")
    if all(bool((each == each[:1]).all()) for each in targets if each.ndim):
        raise UserError("all labels of the batch are equal: no permutation changes them")
