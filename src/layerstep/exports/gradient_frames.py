"""The recorded gradients as frames of an animation: the norm of each layer, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from layerstep.errors import UserError
from layerstep.gradients.recorder import RecordedGradients

__all__ = ["GradientFrames", "gradient_frames"]

MOST_LAYERS = 200


@dataclass(frozen=True, slots=True)
class GradientFrames:
    """The steps, the layers in the order of the model, and a row of norms for each step."""

    steps: tuple[int, ...]
    layers: tuple[str, ...]
    norms: tuple[tuple[float, ...], ...]
    """NaN where a layer had no gradient in a step, infinity where it was not finite."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The powers of ten between which all norms lie."""
        good = [norm for row in self.norms for norm in row if math.isfinite(norm) and norm > 0]
        low, high = (math.log10(min(good)), math.log10(max(good))) if good else (0.0, 0.0)
        return math.floor(low), max(math.ceil(high), math.floor(low) + 1)


def gradient_frames(session: Any) -> GradientFrames:
    """What `grad record` has kept; a `UserError` if there is nothing."""
    recorder = session.instruments.get(RecordedGradients).recorder
    if recorder is None or not len(recorder.log):
        raise UserError("no gradients are recorded", "`grad record` measures them from the next step on")
    log = recorder.log
    layers = tuple(log.layers[:MOST_LAYERS])
    frames = [(frame.step, log.by_layer(frame)) for frame in log.between(0, log.last_step)]
    rows = tuple(
        tuple(_norm(found[layer].size.norm) if layer in found else math.nan for layer in layers)
        for _, found in frames
    )
    return GradientFrames(tuple(step for step, _ in frames), layers, rows)


def _norm(norm: float) -> float:
    return norm if math.isfinite(norm) else math.inf
