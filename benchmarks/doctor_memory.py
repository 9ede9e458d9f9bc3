"""`python -m benchmarks.doctor_memory`: what 100,000 training steps leave in memory, with and without doctor.

Each run is a process of its own. Its size is taken when the training has settled and again at the end.
"""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from layerstep.doctor import budget
from layerstep.doctor.watching import doctor_of
from layerstep.frontends.choose import open_session

__all__ = ["MOST_MB", "STEPS", "Growth", "doctor_memory"]

STEPS, SETTLED = 100_000, 1_000
MOST_MB = 50
EACH_STEP = "extreme, no rests"
"""The doctor rests while steps are short. Here it is made to watch all of them."""
RUNS = ("bare", "basic", "extreme", EACH_STEP)


@dataclass(frozen=True, slots=True)
class Growth:
    """The size of a process in MB: when its training had settled, and how much larger it was at the end."""

    run: str
    settled: float
    grown: float
    watched: int
    """Steps that the doctor watched."""


def doctor_memory(steps: int = STEPS) -> list[Growth]:
    """Run each of them in a fresh process."""
    return [_in_a_process(run, steps) for run in RUNS]


def _in_a_process(run: str, steps: int) -> Growth:
    command = [sys.executable, "-m", "benchmarks.doctor_memory", run, str(steps)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    settled, grown, watched = answer.stdout.split()[-3:]
    return Growth(run, float(settled), float(grown), int(watched))


def _megabytes() -> float:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _measure(steps: int) -> tuple[float, float]:
    """Train a small classifier on fresh batches: the size after some steps, and how much it grows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settled = 0.0
    for step in range(steps):
        if step == min(SETTLED, steps // 2):
            settled = _megabytes()
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    return settled, _megabytes() - settled


def _watched(level: str, measure: Callable[[], tuple[float, float]]) -> tuple[float, float, int]:
    session, _ = open_session(batch=True, output=io.StringIO())
    session.attach(discover=True)
    doctor = doctor_of(session)
    told = [0]

    def one_more(_: object) -> None:
        told[0] += 1

    doctor.steppers.append(one_more)
    doctor.start(budget.Level(level))
    try:
        return *measure(), told[0]
    finally:
        session.detach()
        session.close()


def main() -> None:
    if len(sys.argv) == 1:
        for each in doctor_memory():
            print(f"{each.run:20} {each.settled:7.1f} MB, {each.grown:+.1f} MB, {each.watched:,} watched")
        return
    run, steps = sys.argv[1], int(sys.argv[2])
    if run == EACH_STEP:
        run, budget.WATCHED_AT_FIRST = "extreme", steps
    found = (*_measure(steps), 0) if run == "bare" else _watched(run, lambda: _measure(steps))
    print(*found)


if __name__ == "__main__":
    main()
