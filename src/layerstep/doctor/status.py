"""The status line of a watched training: step, loss, gradient norm, rate, health, own cost."""

from __future__ import annotations

import time

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.health import health_of
from layerstep.doctor.watching import Doctor
from layerstep.tensors.format import number
from layerstep.views import Text

__all__ = ["StatusLine"]

EVERY = 0.25
"""Seconds between two drawings."""


class StatusLine:
    """Draws a line below what the program prints, on a terminal only."""

    def __init__(self, doctor: Doctor) -> None:
        self._doctor = doctor
        self._next = 0.0
        self._counted = (time.monotonic(), 0)
        self._rate = 0.0
        self._norm: float | None = None

    def step(self, step: StepFacts) -> None:
        """A step is done."""
        if step.grad_norm is not None:
            self._norm = step.grad_norm
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        since, count = self._counted
        if now > since:
            self._rate = (step.training_step - count) / (now - since)
        self._counted = (now, step.training_step)
        self._doctor.session.say(Text(self.text(step)), "progress")

    def text(self, step: StepFacts) -> str:
        """The line itself."""
        doctor = self._doctor
        health = health_of(doctor.diagnosis.findings, step.training_step)
        parts = [
            f"step {step.training_step:,}",
            f"loss {number(step.loss)}" if step.loss is not None else "",
            f"grad {number(self._norm)}" if self._norm is not None else "",
            f"{self._rate:.3g} steps/s" if self._rate else "",
            f"health {health.word}",
            f"doctor {doctor.budget.cost:.1%}",
        ]
        return "  ".join(part for part in parts if part)

    def erase(self) -> None:
        self._doctor.session.say(Text(""), "progress")
