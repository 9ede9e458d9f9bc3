"""Runs cases one after the other, or in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from benchmarks.diagnosis.cases import Case
from benchmarks.diagnosis.faults import all_faults
from benchmarks.diagnosis.healthy import all_healthy
from benchmarks.diagnosis.judging import Judged, judge

__all__ = ["Task", "all_cases", "run_all"]

Task = tuple[str, int, str, bool]
"""The name of a case, the seed, the level, and whether the run is a quick one."""


def all_cases() -> Iterator[Case]:
    """Faults program by program, then healthy trainings."""
    yield from all_faults()
    yield from all_healthy()


def run_all(tasks: Sequence[Task], jobs: int) -> Iterator[Judged]:
    """The judged runs, in the order of the tasks."""
    if jobs == 1:
        _prepare()
        yield from map(_run, tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_prepare) as pool:
        yield from pool.map(_run, tasks)


def _prepare() -> None:
    torch.set_num_threads(1)
    if "fork" in multiprocessing.get_all_start_methods():
        # As in a process that was not spawned: the workers of a loader know the planted program.
        multiprocessing.set_start_method("fork", force=True)


def _run(task: Task) -> Judged:
    name, seed, level, quick = task
    case = next(each for each in all_cases() if each.name == name)
    # What other alarms say does not depend on the level, and hardly on the seed: they are asked once.
    others = not quick and level == "extreme" and seed == 0
    return judge(case, seed, level=level, quick=quick, others=others)
