"""Counts what goes wrong in the steps of a training loop."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from layerstep.gradients.flow import DEFAULT
from layerstep.sessions.checks import GradientCheck, GradientChecker

__all__ = ["MonitoredStep", "TrainingDebugger"]

MOST = 1000


@dataclass(frozen=True, slots=True)
class MonitoredStep:
    """One step of the loop."""

    step: int
    loss: float
    gradients: GradientCheck

    @property
    def loss_anomaly(self) -> bool:
        """Is the loss NaN or infinite?"""
        return not math.isfinite(self.loss)

    @property
    def is_anomaly(self) -> bool:
        return self.loss_anomaly or bool(self.gradients.nonfinite or self.gradients.exploding)


class TrainingDebugger:
    """Looks at the loss and the gradients of each step, and counts.

        debugger = TrainingDebugger()
        loss.backward()
        debugger.monitor_training_step(model, loss, step)
        optimizer.step()
        debugger.get_training_summary()["anomaly_rate"]

    A step is an anomaly if its loss or a gradient is not finite, or a gradient explodes. Vanishing gradients
    are counted apart. `thresholds` is the name of a preset.
    """

    def __init__(self, thresholds: str = DEFAULT) -> None:
        self._checker = GradientChecker(thresholds)
        self._history: deque[MonitoredStep] = deque(maxlen=MOST)
        self._start()

    def _start(self) -> None:
        self.total_steps = 0
        self.anomaly_steps = 0
        self.gradient_explosions = 0
        self.gradient_vanishing = 0
        self.loss_anomalies = 0

    @property
    def history(self) -> tuple[MonitoredStep, ...]:
        """The last thousand steps."""
        return tuple(self._history)

    def monitor_training_step(self, model: nn.Module, loss: Tensor | float, step: int) -> MonitoredStep:
        """Look at one step: after the backward, before the gradients are cleared."""
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        found = MonitoredStep(step, value, self._checker.check(model))
        self._history.append(found)
        self.total_steps += 1
        self.anomaly_steps += found.is_anomaly
        self.gradient_explosions += bool(found.gradients.exploding or found.gradients.nonfinite)
        self.gradient_vanishing += bool(found.gradients.vanishing)
        self.loss_anomalies += found.loss_anomaly
        return found

    def get_training_summary(self) -> dict[str, Any]:
        """The counts of steps, and each as a share of all."""
        whole = max(1, self.total_steps)
        return {
            "total_steps": self.total_steps,
            "anomaly_steps": self.anomaly_steps,
            "gradient_explosions": self.gradient_explosions,
            "gradient_vanishing": self.gradient_vanishing,
            "loss_anomalies": self.loss_anomalies,
            "anomaly_rate": self.anomaly_steps / whole,
            "loss_anomaly_rate": self.loss_anomalies / whole,
            "gradient_explosion_rate": self.gradient_explosions / whole,
            "gradient_vanishing_rate": self.gradient_vanishing / whole,
        }

    def clear(self) -> None:
        """Forget all steps."""
        self._history.clear()
        self._start()
