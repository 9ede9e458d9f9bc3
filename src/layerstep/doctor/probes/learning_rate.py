"""Which learning rates work?"""

from __future__ import annotations

import math

import torch

from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial
from layerstep.errors import UserError
from layerstep.tensors.format import number
from layerstep.views import Level, Plot

__all__ = ["learning_rate"]

STEPS = 100
LOWEST, HIGHEST = 1e-7, 10.0
SMOOTH = 0.7
DIVERGED = 3.0
"""A loss that has risen by so many times its first value above its best has diverged."""
FAR_BELOW = 1e-3


@probe("learning-rate", cost=f"up to {STEPS} training steps of a copy")
def learning_rate(trial: Trial) -> Found:
    """Which learning rates make the loss fall, and which let it diverge?

    A copy takes steps on the last batch with a rate that grows from 1e-7 to 10. The rate in use is compared
    with the one at which the loss falls fastest and the one at which it diverges. Where the run uses SGD, the
    copy takes plain gradient descent; else it takes Adam.
    """
    kind, in_use = _in_use(trial)
    plain = "SGD" in kind
    losses = trial.learn(
        trial.twin(),
        steps=STEPS,
        rate=_rate,
        plain=plain,
        until=_has_diverged,
    )
    smooth = _smoothed(losses)
    if len(smooth) < 3:
        raise UserError("the loss of a copy is not finite after the first steps")
    falls = [smooth[step] - smooth[step + 1] for step in range(len(smooth) - 1)]
    best = _rate(max(range(len(falls)), key=falls.__getitem__))
    ended = len(losses) - 1 if _has_diverged(losses) else None
    diverges = _rate(ended) if ended is not None else math.inf
    used = f"the rate in use is {number(in_use)}" if in_use is not None else "no optimizer has stepped yet"
    level: Level = "good"
    text = f"the loss falls fastest at about {number(best)}; {used}"
    if in_use is not None and in_use >= diverges:
        text, level = f"{used}, and from about {number(diverges)} on the loss diverges", "warn"
    elif in_use is not None and in_use < best * FAR_BELOW:
        text, level = f"{used}; the loss falls fastest at about {number(best)}", "info"
    figures = [
        ("falls fastest", number(best)),
        ("diverges", number(diverges) if ended is not None else f"not up to {number(HIGHEST)}"),
        ("in use", f"{number(in_use)}, {kind}" if in_use is not None else "-"),
    ]
    plot = Plot(
        "line",
        (tuple(smooth),),
        title="loss of the copy",
        x=tuple(math.log10(_rate(step)) for step in range(len(smooth))),
        x_label="log10 of the learning rate",
    )
    way = "gradient descent" if plain else "Adam"
    did = f"trained a copy on one batch by {way} with a growing learning rate"
    return Found(text, level, did, tuple(figures), plot)


def _rate(step: int) -> float:
    return float(LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1)))


def _has_diverged(losses: list[float]) -> bool:
    if not math.isfinite(losses[-1]):
        return True
    return losses[-1] - min(losses) > DIVERGED * (abs(losses[0]) or 1.0)


def _smoothed(losses: list[float]) -> list[float]:
    smooth: list[float] = []
    for loss in losses:
        if math.isfinite(loss):
            smooth.append(SMOOTH * smooth[-1] + (1 - SMOOTH) * loss if smooth else loss)
    return smooth


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
