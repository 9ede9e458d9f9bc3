"""Take the times. Everything that is compared runs interleaved, in one process, on one thread."""

from __future__ import annotations

import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmarks.models import Case, huge_model
from benchmarks.variants import BARE, VARIANTS, Variant, check_clean, new_session
from layerstep.engine.session import Session
from layerstep.frontends.completion import complete

__all__ = [
    "FULL",
    "QUICK",
    "Effort",
    "Overhead",
    "Spread",
    "StartUp",
    "latencies",
    "overhead",
    "quiet",
    "start_up",
]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    rounds: int
    sample: float
    """Seconds of bare forwards that make one sample."""
    heavy_rounds: int
    processes: int
    answers: int
    least: int = 8
    """No sample is the fastest of fewer forwards than this."""


FULL = Effort(rounds=40, sample=0.05, heavy_rounds=5, processes=11, answers=31)
QUICK = Effort(rounds=7, sample=0.01, heavy_rounds=1, processes=3, answers=5)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values and the range of their middle half."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        given = list(values)
        if len(given) < 2:
            return cls(given[0], given[0], given[0])
        low, median, high = statistics.quantiles(given, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one forward: by the clock, and of processor time in this thread."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """The samples of one model: for each round, the time of each variant that ran in it."""

    case: Case
    calls: int
    """Module calls in one forward."""
    rounds: list[dict[str, Times]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Variants that torch refuses on this model, and its words."""

    def has(self, variant: Variant) -> bool:
        return any(variant.name in times for times in self.rounds)

    def ratio(self, variant: Variant, base: Variant = BARE, *, clock: str = "cpu") -> Spread:
        """The spread, over the rounds, of one variant's time by another's."""
        return Spread.of(
            getattr(times[variant.name], clock) / getattr(times[base.name], clock)
            for times in self.rounds
            if variant.name in times
        )

    def added(self, variant: Variant, base: Variant = BARE) -> Spread:
        """What it adds to one module call, in µs of processor time."""
        return Spread.of(
            (times[variant.name].cpu - times[base.name].cpu) / self.calls * 1e6
            for times in self.rounds
            if variant.name in times
        )


def overhead(case: Case, effort: Effort, variants: Sequence[Variant] = VARIANTS) -> Overhead:
    """Run every variant once a round, in a new order each round."""
    order = random.Random(0)
    result = Overhead(case, case.calls())
    count = max(effort.least, min(50, round(effort.sample / _sample(variants[0], case, 5).wall)))
    variants = [v for v in variants if not v.is_missing and (case.returns_tensors or not v.of_tensors)]
    for variant in list(variants):
        try:
            _sample(variant, case, 1)
        except RuntimeError as error:  # full backward hooks on layers that work in place
            result.failed[variant.name] = str(error).partition(".")[0]
            variants.remove(variant)
    gc.freeze()  # what is there now need not be looked through after every sample
    for number in range(effort.rounds):
        now = [variant for variant in variants if not variant.is_heavy or number < effort.heavy_rounds]
        order.shuffle(now)
        result.rounds.append({v.name: _sample(v, case, 1 if v.is_heavy else count) for v in now})
    return result


def _sample(variant: Variant, case: Case, count: int) -> Times:
    """The fastest of `count` forwards, after some that are not timed: other work only makes one slower."""
    wall, cpu = [], []
    with variant.open(case) as run:
        for _ in range(min(3, count)):  # caches of types and of code settle after a change of classes
            run()
        for _ in range(count):
            thread, clock = time.thread_time(), time.perf_counter()
            run()
            wall.append(time.perf_counter() - clock)
            cpu.append(time.thread_time() - thread)
    check_clean(case.model)
    gc.collect()
    return Times(min(wall), min(cpu))


_STATEMENTS = (
    "import torch",
    "import torch; import layerstep",
    "import torch; import layerstep; layerstep.DebugConsole",
)
_CHILD = """
import gc
from time import perf_counter
collecting = 0.0
def collector(phase, info):
    global collecting
    collecting += perf_counter() if phase == "stop" else -perf_counter()
start = perf_counter()
import torch
middle = perf_counter()
gc.callbacks.append(collector)
{rest}
end = perf_counter()
print(end - start, end - middle, collecting)
"""


@dataclass(frozen=True, slots=True)
class StartUp:
    """Milliseconds of a statement in a fresh process."""

    statement: str
    total: Spread
    own: Spread
    """What comes after `import torch`."""
    collector: Spread
    """Of that, the garbage collector, which is due to look through torch's objects about then."""


def start_up(effort: Effort) -> list[StartUp]:
    """Time the statements in fresh processes, in turn, all with their bytecode at hand."""
    taken: dict[str, list[list[float]]] = {statement: [] for statement in _STATEMENTS}
    with tempfile.TemporaryDirectory() as cache:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        _start(_STATEMENTS[-1], environment)
        for _ in range(effort.processes):
            for statement in _STATEMENTS:
                taken[statement].append(_start(statement, environment))
    return [
        StartUp(statement, *(Spread.of(column) for column in zip(*rows, strict=True)))
        for statement, rows in taken.items()
    ]


def _start(statement: str, environment: dict[str, str]) -> list[float]:
    rest = statement.removeprefix("import torch").removeprefix("; ")
    command = [sys.executable, "-c", _CHILD.format(rest=rest)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(word) * 1e3 for word in answer.stdout.split()]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds until an answer on a model of 10,000 modules."""

    name: str
    first: Spread
    """In a new session, which has looked at nothing yet."""
    later: Spread
    """After a stop, which looks whether the model has changed."""


def latencies(effort: Effort) -> list[Latency]:
    alike, different = huge_model(alike=True), huge_model(alike=False)
    return [
        _latency("`tree`, all blocks alike", alike, lambda s: s.prompt.run_line("tree")[0], effort),
        _latency("`tree`, no two alike", different, lambda s: s.prompt.run_line("tree")[0], effort),
        _latency("complete `break layers.12`", alike, lambda s: complete(s, "break layers.12"), effort),
        _latency(
            "complete `break lay12` (no such path)", alike, lambda s: complete(s, "break lay12"), effort
        ),
    ]


def _latency(name: str, model: nn.Module, answer: Callable[[Session], object], effort: Effort) -> Latency:
    first, later = [], []
    for _ in range(effort.answers):
        session = new_session()
        session.add_model(model)
        start = time.perf_counter()
        assert answer(session)
        middle = time.perf_counter()
        session.run.models.refresh()
        assert answer(session)
        first.append((middle - start) * 1e3)
        later.append((time.perf_counter() - middle) * 1e3)
        gc.collect()
    return Latency(name, Spread.of(first), Spread.of(later))


def quiet() -> None:
    """One thread, no gradients, no collector in the middle of a forward."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    gc.disable()
