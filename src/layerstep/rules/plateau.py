"""A loss that has stopped falling."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.dynamics import judged, windows_of
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import WindowRule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import theil_sen
from layerstep.registry import rule

__all__ = ["Plateau"]

LEAST = 200


@rule("R39", "plateau", severity="info", confidence="statistical", cost="always")
class Plateau(WindowRule):
    """The loss has stopped falling.

    Why: the training is done, or it is stuck because the learning rate is now too small or too large.
    The slope is the median of the slopes between pairs of steps (Theil-Sen), over the last two windows.

    How to fix: if the quality is not enough, change the learning rate, or give the model more capacity.
    """

    advice = ("if the quality is not enough, lower the learning rate, or use a larger model",)
    every = 40
    patience = 41

    def look_back(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        optimizer = judged(step, run)
        seen = windows_of(optimizer, least=LEAST) if optimizer is not None else None
        if optimizer is None or seen is None:
            return
        points = [(float(at), value) for at, value in optimizer.loss.recent if math.isfinite(value)]
        points = points[-2 * seen.length :]
        apart = (points[-1][0] - points[0][0]) / max(len(points) - 1, 1)  # more than 1 where steps are unseen
        change = theil_sen(points) * len(points) * apart
        fell = seen.first - seen.last
        if abs(change) > max(0.001 * abs(seen.last), seen.noise / math.sqrt(seen.length)) or fell <= 0:
            return
        if abs(change) > 0.02 * fell:
            return
        at = optimizer.made_at
        yield Sign(
            f"the loss stays at {seen.last:.4g} since {round(len(points) * apart)} steps or more",
            Place(file=at.file, line=at.line),
            {"loss": seen.last, "change": change},
        )
