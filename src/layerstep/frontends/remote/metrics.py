"""What a training does step by step, kept for clients: the step, and what the doctor sees if it is on."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.watching import doctor_of
from layerstep.engine.session import Session
from layerstep.training_steps.steps import Stepped, Steps

__all__ = ["Metrics"]

MOST = 100_000
OFTEN = 0.05
"""Seconds between two rows that are kept: a fast training makes thousands a second."""


class Metrics:
    """A ring of rows. Only the thread of the program writes it."""

    def __init__(self, session: Session) -> None:
        self._training = session.run.training
        self._doctor = doctor_of(session)
        self._rows: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._made = 0
        self._next = 0.0

    def start(self) -> None:
        """Begin to note steps; the session must be attached."""
        Steps.listen(self._training.after, self._stepped, True)
        if self._judged not in self._doctor.steppers:
            self._doctor.steppers.append(self._judged)

    def rows(self, first: int, most: int) -> list[dict[str, Any]]:
        """The rows from this number on."""
        found = [row for row in list(self._rows) if row["n"] >= first]
        return found[: max(most, 0)]

    @property
    def last(self) -> int:
        """The number of the newest row; 0 if there is none."""
        return self._made

    def _stepped(self, stepped: Stepped) -> None:
        if stepped.number == 1 and not self._doctor.is_on:
            self._add({"step": self._training.count})

    def _judged(self, step: StepFacts) -> None:
        self._add(
            {
                "step": step.training_step,
                "loss": _finite(step.loss),
                "grad_norm": _finite(step.grad_norm),
                "lr": _finite(step.lr),
                "samples": step.samples,
                "findings": len(self._doctor.diagnosis.findings),
            }
        )

    def _add(self, row: dict[str, Any]) -> None:
        now = time.time()
        if now >= self._next:
            self._next = now + OFTEN
            self._made += 1
            self._rows.append({"n": self._made, "t": round(now, 3), **row})


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)
