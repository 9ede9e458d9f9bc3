"""Which learning rates work?"""

from __future__ import annotations

import math

import torch
from torch import nn

from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial, without_dropout
from layerstep.errors import UserError
from layerstep.tensors.format import number
from layerstep.views import Level, Plot

__all__ = ["learning_rate"]

STEPS = 5
RATES = tuple(10 ** (exponent / 3) for exponent in range(-18, 4))
"""From 1e-6 to 10, three in each decade."""
RISEN = 1.2
"""A loss that has risen to so many times its first value."""
FAR_BELOW = 1e-3


@probe("learning-rate", cost=f"{len(RATES)} × {STEPS} training steps of a copy")
def learning_rate(trial: Trial) -> Found:
    """Which learning rates make the loss fall, and which let it diverge?

    For each rate from 1e-6 to 10 a copy takes a few steps on the last batch, always from where the model
    stands. The rate in use is compared with the one that lowers the loss most and with the one from which on
    it rises. Where the run uses SGD, the copy takes plain gradient descent; else it takes Adam.
    """
    kind, in_use = _in_use(trial)
    plain = "SGD" in kind
    model = without_dropout(trial.twin())
    first, after = _losses(trial, model, plain=plain)
    if not after or not math.isfinite(first):
        raise UserError("the loss of the copy is not finite: no rate can be tried")
    best = min(after, key=lambda rate: after[rate])
    risen = [rate for rate, loss in after.items() if rate > best and not loss < first + _room(first)]
    rises = min(risen, default=math.inf)
    used = f"the rate in use is {number(in_use)}" if in_use is not None else "the optimizer is gone"
    level: Level = "good"
    text = f"the loss falls fastest at about {number(best)}; {used}"
    if in_use is not None and in_use >= rises:
        text, level = f"{used}, and from about {number(rises)} on the loss rises", "warn"
    elif in_use is not None and in_use < best * FAR_BELOW:
        text, level = f"{used}, far below {number(best)}, where the loss falls fastest", "info"
    figures = (
        ("falls fastest", number(best)),
        ("rises", f"from {number(rises)} on" if risen else f"not up to {number(max(after))}"),
        ("in use", f"{number(in_use)}, {kind}" if in_use is not None else "-"),
    )
    top = first + 2 * _room(first)
    plot = Plot(
        "line",
        (tuple(min(loss, top) if math.isfinite(loss) else math.nan for loss in after.values()),),
        title=f"loss after {STEPS} steps; before them it is {number(first)}",
        x=tuple(math.log10(rate) for rate in after),
        x_label="log10 of the learning rate",
    )
    did = f"took {STEPS} steps of {'gradient descent' if plain else 'Adam'} at each of {len(after)} rates"
    return Found(text, level, did, figures, plot)


def _room(first: float) -> float:
    return (RISEN - 1) * (abs(first) or 1.0)


def _losses(trial: Trial, model: nn.Module, *, plain: bool) -> tuple[float, dict[float, float]]:
    """The loss as it is, and after a few steps at each rate."""
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    first, after = math.nan, {}
    for rate in RATES:
        model.load_state_dict(state)
        losses = trial.learn(model, steps=STEPS + 1, rate=lambda step, rate=rate: rate, plain=plain)  # type: ignore[misc]
        if not trial.has_time:
            break
        first, after[rate] = losses[0], losses[-1] if math.isfinite(losses[-1]) else math.inf
    return first, after


def _in_use(trial: Trial) -> tuple[str, float | None]:
    """The class and the largest learning rate of the optimizer that trains the model."""
    mine = {id(parameter) for parameter in trial.call.module.parameters()}
    for optimizer in trial.optimizers:
        rates = [
            float(torch.as_tensor(group["lr"]))
            for group in optimizer.param_groups
            if any(id(parameter) in mine for parameter in group["params"])
        ]
        if rates:
            return type(optimizer).__name__, max(rates)
    return "Adam", None
