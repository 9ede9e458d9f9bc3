"""Healthy trainings of many kinds. A doctor that warns of one of them is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.diagnosis.cases import PROGRAMS, Healthy
from benchmarks.diagnosis.healthy import (
    fresh,
    fresh_sequences,
    fresh_three,
    fresh_two,
    generative,
    libraries,
    losses,
    optimizers,
    precision,
    reinforcement,
    schedules,
    sequences,
    several,
    structures,
    transfer,
    unusual,
    vision,
)
from benchmarks.diagnosis.healthy.registered import REGISTERED
from benchmarks.diagnosis.variants import all_variants

__all__ = ["all_healthy"]

FILES = (
    vision,
    sequences,
    structures,
    generative,
    reinforcement,
    transfer,
    several,
    optimizers,
    schedules,
    losses,
    precision,
    unusual,
    libraries,
    fresh,
    fresh_sequences,
    fresh_two,
    fresh_three,
)

LONGER = {"lstm": 200, "trainer": 200}
"""Programs that have fewer steps by themselves: 200 are compared bit by bit."""


def all_healthy() -> Iterator[Healthy]:
    """The programs as they are, then the others."""
    for program in PROGRAMS:
        yield Healthy(
            name=f"{program}, as it is", program=program, falls_to=0.7, seeds=3, steps=LONGER.get(program)
        )
    yield from all_variants()
    yield from REGISTERED
