"""The health of a run: 100 minus what its findings cost, each of them named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerstep.doctor.finding import Finding, Severity

__all__ = ["ENOUGH", "PENALTY", "Health", "health_of"]

PENALTY = {Severity.INFO: 0, Severity.WARNING: 10, Severity.ERROR: 30, Severity.CRITICAL: 60}
ENOUGH = 20
"""Training steps before a run has a health at all."""


@dataclass(frozen=True, slots=True)
class Health:
    """The score and what it is made of."""

    score: int | None
    """None before enough steps were seen."""
    costs: tuple[tuple[Finding, int], ...]
    """The findings that cost points. What another finding explains costs nothing more."""

    @property
    def word(self) -> str:
        return "n/a" if self.score is None else str(self.score)


def health_of(findings: Sequence[Finding], steps: int) -> Health:
    """The health after so many training steps. Findings that were cleared cost nothing."""
    causes = [each for each in findings if each.is_active and not each.caused_by and PENALTY[each.severity]]
    costs = tuple((each, PENALTY[each.severity]) for each in causes)
    if steps < ENOUGH:
        return Health(None, ())
    return Health(max(0, 100 - sum(cost for _, cost in costs)), costs)
