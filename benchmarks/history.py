"""What `history on` costs in a training step, beside copying the state by hand."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.measure import Effort, Overhead, Spread, Times
from benchmarks.models import Case
from benchmarks.report import with_range
from benchmarks.tables import table
from benchmarks.training import TrainingCase, training_cases
from benchmarks.variants import Run, Variant, attached, check_clean, new_session, say

__all__ = ["HISTORY", "history_section", "measure_history"]

STEPS = 10
"""In whole runs: a page is copied when it is first written after a fork, and not every step has one."""


class _Trained:
    """A step of AdamW with a rate of 0: it writes all weights and moments, and changes no weight."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.optimizer = torch.optim.AdamW(case.model.parameters(), lr=0.0, weight_decay=0.0)

    def step(self) -> None:
        with torch.enable_grad():
            out = self._case.model(self._case.input)
            getattr(out, "logits", out).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextlib.contextmanager
def _bare(case: Case) -> Iterator[Run]:
    yield _Trained(case).step


@contextlib.contextmanager
def _under(case: Case, *, line: str) -> Iterator[Run]:
    session = new_session()
    session.add_model(case.model)
    with attached(session, discover=False):
        say(session, line)
        yield _Trained(case).step
        assert session.run.training.count, "no step was seen"


@contextlib.contextmanager
def _copies(case: Case) -> Iterator[Run]:
    """As people write it: the state of the model and of the optimizer, copied after each step."""
    trained = _Trained(case)
    kept: list[object] = []

    def run() -> None:
        trained.step()
        kept[:] = [copy.deepcopy((case.model.state_dict(), trained.optimizer.state_dict()))]

    yield run


HISTORY = (
    Variant("bare", _bare),
    Variant("bare, again (noise)", _bare),
    Variant("`history on`", partial(_under, line="history on")),
    Variant("`history on every 10`", partial(_under, line="history on every 10")),
    Variant("copies of `state_dict()`, the last step only", _copies),
)


HEADING = "## History"
_WORDS = """\
Training steps with AdamW, which writes all weights and moments in each step, in whole runs of them. `history
on` forks the process after each step; the run then copies each page of memory that it writes for the first
time. Copying `state_dict()` by hand keeps one state, not the program. Processor time of the process, with
what the kernel does for it. `python -m benchmarks.sections --history --write` measures this part alone."""


def history_section(found: Sequence[Overhead], load: tuple[float, float]) -> str:
    """What `history on` costs, as it is on the page."""
    parts = [HEADING, _WORDS]
    for one in found:
        bare = Spread.of(times["bare"].cpu * 1e3 for times in one.rounds).median
        rows = [
            (variant.name, with_range(one.ratio(variant, clock="cpu"), 2), f"{_added(one, variant):+.1f}")
            for variant in HISTORY
        ]
        parts += [f"### {one.case.name}: {bare:.1f} ms bare", table(("", "× bare", "ms per step"), rows)]
    begin, end = load
    rounds = len(found[0].rounds)
    return "\n\n".join([*parts, f"Rounds: {rounds}. The load average was {begin:.1f} to {end:.1f}."])


def _added(found: Overhead, variant: Variant) -> float:
    return Spread.of((times[variant.name].cpu - times["bare"].cpu) * 1e3 for times in found.rounds).median


def measure_history(effort: Effort) -> list[Overhead]:
    """Of the GPT-2-like model and of many small layers, with what the kernel does for the process."""
    cases = training_cases()
    chosen = [next(case for case in cases if "GPT" in case.name), next(c for c in cases if not c.is_real)]
    found = [Overhead(case, case.calls()) for case in chosen]
    order = random.Random(0)
    for overhead in found:
        assert isinstance(overhead.case, TrainingCase)
        for _ in range(max(3, effort.rounds // 8)):
            now = list(HISTORY)
            order.shuffle(now)
            overhead.rounds.append({variant.name: _take(variant, overhead.case) for variant in now})
    return found


def _take(variant: Variant, case: Case) -> Times:
    with variant.open(case) as run:
        for _ in range(2):
            run()
        wall, cpu = time.perf_counter(), sum(os.times()[:2])
        for _ in range(STEPS):
            run()
        taken = Times((time.perf_counter() - wall) / STEPS, (sum(os.times()[:2]) - cpu) / STEPS)
    check_clean(case.model)
    gc.collect()
    return taken
