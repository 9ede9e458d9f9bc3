"""The doctor's log: one JSON object a line, flushed as it is written, so that it survives a killed run."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from typing import IO, Any

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import SCHEMA, Finding

__all__ = ["Log"]

OFTEN = 0.1
"""Seconds between two steps that are written; the findings are all written, and at once."""


class Log:
    """Writes steps and findings. A full disk ends the log, never the run."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._next = 0.0
        self.is_broken = False

    def begins(self, script: str, level: str) -> None:
        """The first line."""
        self._write({"kind": "begin", "schema": SCHEMA, "script": script, "level": level})

    def step(self, step: StepFacts) -> None:
        """One step, if the last one that was written is long enough ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + OFTEN
        self._write(
            {
                "kind": "step",
                "step": step.training_step,
                "optimizer": step.optimizer,
                "loss": _plain(step.loss),
                "grad_norm": _plain(step.grad_norm),
                "lr": _plain(step.lr),
                "samples": step.samples,
                "seconds": _plain(step.seconds),
            }
        )

    def finding(self, finding: Finding) -> None:
        """A finding when it arises."""
        self._write({"kind": "finding", **finding.to_json()})

    def ends(self, findings: list[Finding], health: int | None, cost: float) -> None:
        """The last line: what stands at the end, causes first."""
        told = [each.to_json() for each in findings]
        self._write({"kind": "end", "health": health, "cost": _plain(cost), "findings": told})

    def _write(self, line: dict[str, Any]) -> None:
        if self.is_broken:
            return
        line["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._file.write(json.dumps(_clean(line), allow_nan=False) + "\n")
            self._file.flush()
        except (OSError, ValueError):
            self.is_broken = True


def _plain(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return _plain(value) if isinstance(value, float) else value
