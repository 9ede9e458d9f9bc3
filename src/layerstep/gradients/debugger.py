"""The gradient debugger as a library: record the gradients of a model, and judge them."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from torch import nn

from layerstep.errors import UserError
from layerstep.gradients.flow import (
    DEFAULT,
    PRESETS,
    FlowSummary,
    GradientFlow,
    GradientFrame,
    Health,
    LayerGradient,
    Thresholds,
    size_of,
)
from layerstep.gradients.log import TOTALS, Clipping, clipping_of
from layerstep.gradients.sizes import Size, measure

__all__ = [
    "PRESETS",
    "Clipping",
    "FlowSummary",
    "GradientDebugger",
    "GradientFlow",
    "GradientFrame",
    "Health",
    "LayerGradient",
    "Thresholds",
]


class GradientDebugger:
    """Watches the gradients of a model over its training steps.

        debugger = GradientDebugger(model)
        loss.backward()
        debugger.record_step()            # reads every .grad, once a step
        debugger.analyze_gradient_flow().overall_health

    `record_gradient_flow(layer, grads)` takes gradients from elsewhere. It keeps numbers, never tensors.
    `max_frames` 0 keeps all steps; `thresholds` is a preset's name or a `Thresholds`.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        max_frames: int = 200,
        thresholds: str | Thresholds = DEFAULT,
    ) -> None:
        self.model = model
        self._flow = GradientFlow(max_frames, thresholds=thresholds)
        self._totals: deque[float] = deque(maxlen=TOTALS)
        self._open: dict[str, Size] = {}
        self._step = 0

    @property
    def flow(self) -> GradientFlow:
        """The steps so far. Ends a step that `record_gradient_flow` has begun."""
        self._close()
        return self._flow

    def record_step(self, step: int | None = None) -> GradientFrame:
        """Read the gradients of all parameters. Call it after the backward, before they are cleared."""
        if self.model is None:
            raise UserError("record_step() reads a model's gradients", "GradientDebugger(model)")
        self._close()
        found = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return self._record(dict(zip(found, measure(list(found.values())), strict=True)), step)

    def record_gradient_flow(self, layer: str, grads: Any) -> None:
        """Add the gradient of one layer: a tensor, an array or numbers.

        A layer that comes again begins a new step.
        """
        if layer in self._open:
            self._close()
        self._open[layer] = size_of(grads)

    def _close(self) -> None:
        if self._open:
            found, self._open = self._open, {}
            self._record(found, None)

    def _record(self, sizes: dict[str, Size], step: int | None) -> GradientFrame:
        frame = self._flow.record_numbers(self._step if step is None else step, sizes)
        self._step = frame.step + 1
        self._totals.append(math.hypot(*(layer.grad_norm for layer in frame.layers)))
        return frame

    def analyze_gradient_flow(self) -> FlowSummary:
        """Sum up the recorded steps: `.overall_health`, the layers that vanish or explode, what to do."""
        return self.flow.summary_report()

    def vanishing_layers(self) -> tuple[str, ...]:
        """The layers whose gradient vanished in a recorded step."""
        return self.analyze_gradient_flow().layers_with_vanishing_grads

    def exploding_layers(self) -> tuple[str, ...]:
        """The layers whose gradient exploded in a recorded step."""
        return self.analyze_gradient_flow().layers_with_exploding_grads

    def recommend_clipping(self) -> Clipping:
        """What the total norms say about a `max_norm`; NaN until more than 10 steps are recorded."""
        self._close()
        return clipping_of(self._totals)

    def clear(self) -> None:
        """Forget all steps."""
        self._flow.clear()
        self._totals.clear()
        self._open.clear()
        self._step = 0
