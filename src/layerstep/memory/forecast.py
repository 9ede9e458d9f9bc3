"""What a larger batch would need, from steps that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerstep.memory.step import SCALING, MeasuredStep, Peak

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected peak, and its basis."""

    batch: int
    bytes: int
    fixed: int
    scaling: int
    """The parts of the measured peak: what stays, and what grows with the batch."""
    basis: str


def forecast(steps: Sequence[MeasuredStep], times: int = 2) -> Forecast | None:
    """The peak with a batch `times` as large as the last; None where no batch is known.

    Parameters, gradients and optimizer state stay; inputs, saved activations and temporaries grow. Steps with
    batches of different sizes tell by how much; with one size alone, we assume in proportion.
    """
    known = [step for step in steps if step.batch and step.peak.kinds]
    if not known:
        return None
    last = known[-1]
    assert last.batch is not None
    grown = [_grown(peak, times) for peak in (last.peak, last.in_optimizer)]
    scaling = sum(last.peak.kinds.get(kind, 0) for kind in SCALING)
    fixed = last.peak.bytes - scaling
    by_batch = {step.batch: step.peak.bytes for step in known if step.batch}
    if len(by_batch) > 1:
        (least, low), (most, high) = min(by_batch.items()), max(by_batch.items())
        slope = (high - low) / (most - least)
        expected = round(last.peak.bytes + slope * last.batch * (times - 1))
        sizes = ", ".join(map(str, sorted(by_batch)[:4])) + (", …" if len(by_batch) > 4 else "")
        basis = f"measured with batches of {sizes}"
        return Forecast(last.batch * times, max(expected, grown[1]), fixed, scaling, basis)
    basis = f"assumed: in proportion, only batches of {last.batch} were measured"
    return Forecast(last.batch * times, max(grown), fixed, scaling, basis)


def _grown(peak: Peak, times: int) -> int:
    return peak.bytes + (times - 1) * sum(peak.kinds.get(kind, 0) for kind in SCALING)
