"""Can a copy learn one batch?"""

from __future__ import annotations

from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial, without_dropout
from layerstep.tensors.format import number
from layerstep.views import Level, Plot

__all__ = ["overfit"]

STEPS = 200
RATES = (1e-3, 1e-2)
LEARNED, FELL = 0.1, 0.7
"""A loss that falls to a tenth was learned; one that stays above seven tenths was not."""


@probe("overfit", cost=f"up to {len(RATES)} × {STEPS} training steps of a copy")
def overfit(trial: Trial) -> Found:
    """Can a copy learn the last batch by heart?

    A model and a loss that fit together learn one batch within a few hundred steps, whatever the data are. If
    they do not, look for the fault in the model or the loss, not in the data or the schedule. Dropout is off
    meanwhile, and Adam takes the steps with learning rates of its own.
    """
    runs = {}
    for rate in RATES:
        model = without_dropout(trial.twin())
        runs[rate] = trial.learn(
            model,
            steps=STEPS + 1,
            rate=lambda step, rate=rate: rate,  # type: ignore[misc]
            until=lambda losses: _share(losses) < LEARNED / 10,
        )
        if _share(runs[rate]) < LEARNED or not trial.has_time:
            break
    rate, losses = min(runs.items(), key=lambda item: _share(item[1]))
    share, steps = _share(losses), len(losses) - 1
    fall = f"the loss goes from {number(losses[0])} to {number(min(losses))} in {steps} steps"
    level: Level
    if share < LEARNED:
        text, level = f"yes: {fall}", "good"
    elif share < FELL:
        text, level = f"in part: {fall}; labels that contradict each other also look like this", "info"
    else:
        text, level = f"no: {fall}; the model, the loss or the labels' shape is wrong", "warn"
    plot = Plot("line", (tuple(losses),), title="loss of the copy", x_label="step", log=min(losses) > 0)
    return Found(
        text,
        level,
        f"trained a copy on one batch, Adam, learning rate {number(rate)}, dropout off",
        plot=plot,
    )


def _share(losses: list[float]) -> float:
    """What is left of the loss; of a loss below zero, how much of its size it has not fallen by."""
    first, last = losses[0], min(losses)
    return last / first if first > 0 and last > 0 else 1 - (first - last) / (abs(first) or 1.0)
