"""Profiling: what `profile on` costs beside other profilers, whether it agrees, and what it tells apart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.measure import Effort, Overhead, Spread, overhead
from benchmarks.models import Case
from benchmarks.training import BARE, Stepper, TrainingCase, bare, training_cases, under
from benchmarks.variants import Run, Variant, attached, new_session, say
from layerstep.profile.compare import Saved, TimeChange, compare_profiles, joined, saved_of
from layerstep.profile.state import state_of

__all__ = [
    "PROFILED",
    "PROFILERS",
    "Agreement",
    "Profiling",
    "Verdicts",
    "measure_profiling",
    "profiling_tables",
]

STEPS = 12
COMPARED = 300
ROUNDS = 4
LAYERS = 18
MORE = 20
"""Two more of the same layers: with what is outside of them a real change of 10 %."""


@contextlib.contextmanager
def _torch_profiler(case: Case, **options: Any) -> Iterator[Run]:
    """On for each step by itself, as with a schedule of one active step."""
    stepper = Stepper(case.model)

    def run() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options):
            stepper.run(case)

    yield run


@contextlib.contextmanager
def _pyinstrument(case: Case) -> Iterator[Run]:
    from pyinstrument import Profiler

    profiler = Profiler(interval=0.001)
    profiler.start()
    try:
        yield partial(Stepper(case.model).run, case)
    finally:
        profiler.stop()


@contextlib.contextmanager
def _synchronized_hooks(case: Case) -> Iterator[Run]:
    """A clock in hooks on every module, with a synchronization each, as people write it by hand."""
    spent: dict[nn.Module, float] = {}

    def wait() -> float:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return time.perf_counter()

    def begin(module: nn.Module, args: Any) -> None:
        spent[module] = spent.get(module, 0.0) - wait()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        spent[module] += wait()

    with contextlib.ExitStack() as handles:
        for module in case.model.modules():
            handles.callback(module.register_forward_pre_hook(begin).remove)
            handles.callback(module.register_forward_hook(end).remove)
        yield partial(Stepper(case.model).run, case)


PROFILED = Variant("`profile on`, forward and backward", partial(under, lines=("profile on",)))
PROFILERS = (
    BARE,
    Variant("bare, again (noise)", bare),
    PROFILED,
    Variant("hooks with a clock on all modules, forward only", _synchronized_hooks),
    Variant("pyinstrument, 1 ms", _pyinstrument, needs="pyinstrument"),
    Variant("torch.profiler", _torch_profiler),
    Variant(
        "torch.profiler, shapes and memory",
        partial(_torch_profiler, record_shapes=True, profile_memory=True),
    ),
    Variant(
        "torch.profiler, shapes, memory and stacks",
        partial(_torch_profiler, record_shapes=True, profile_memory=True, with_stack=True),
    ),
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """One model: its parts against the step, and against torch.profiler."""

    name: str
    parts: Spread
    """The sum of all parts by the step as a clock around it saw it."""
    kernels: Spread
    """The parts that run kernels by the own times of torch.profiler, both in the same steps."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """How often a comparison said that two profiles differ."""

    real: int
    equal: int
    changes: list[tuple[TimeChange, TimeChange]]
    """Of each pair that differs, and of each that does not."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """Everything about profiling that one run of the benchmarks found."""

    overheads: list[Overhead]
    agreements: list[Agreement]
    verdicts: Verdicts


def measure_profiling(effort: Effort, pairs: int, tell: Callable[[str], None]) -> Profiling:
    cases = [case for case in training_cases() if case.is_real]
    overheads = []
    for case in cases:
        tell(f"profilers on {case.name}")
        overheads.append(overhead(case, effort, PROFILERS))
    tell("agreement")
    agreements = [agreement(case) for case in cases]
    tell("comparisons")
    return Profiling(overheads, agreements, verdicts(pairs))


def agreement(case: TrainingCase) -> Agreement:
    session = new_session()
    session.add_model(case.model)
    stepper = Stepper(case.model)
    with attached(session, discover=False):
        parts = _parts(session, lambda: stepper.run(case))
        kernels = _kernels(session, lambda: stepper.run(case))
    return Agreement(case.name, Spread.of(parts), Spread.of(kernels))


def _parts(session: Any, run: Run) -> list[float]:
    """Our sums, with our own work, by a clock around the step; borders are the ends of the optimizer."""
    state = state_of(session)
    say(session, "profile on")
    ends = []
    for _ in range(STEPS):
        run()
        ends.append(time.perf_counter())
    say(session, "profile off")
    clocked = [b - a for a, b in pairwise(ends)][-len(state.measured().steps) :]
    measured = state.measured()
    sums = [sum(row.own[at] for row in measured.rows) for at in range(len(measured.steps))]
    return [(s + tool) / c for s, tool, c in zip(sums, measured.tool, clocked, strict=True)]


def _kernels(session: Any, run: Run) -> list[float]:
    state = state_of(session)
    found = []
    for _ in range(5):
        say(session, "profile on")
        run()
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            run()
        say(session, "profile off")
        measured = state.measured()
        ours = sum(row.own[-1] for row in measured.rows if row.path not in ("data", "after backward"))
        theirs = sum(event.self_cpu_time_total for event in profiler.key_averages()) / 1e6
        found.append(ours / theirs)
    return found


def _profile(layers: int) -> Saved:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(256, 256), nn.GELU()]
    model = nn.Sequential(*parts)
    x = torch.randn(128, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = new_session()
    session.add_model(model)
    with attached(session, discover=False):
        say(session, f"profile {COMPARED}")
        while state_of(session).profile.is_on:
            with torch.enable_grad():
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return saved_of(state_of(session).measured())


def verdicts(pairs: int) -> Verdicts:
    """Pairs of profiles, their rounds in turn: two more layers, or the same."""
    real = equal = 0
    found = []
    for _ in range(pairs):
        taken = [[_profile(layers) for layers in (LAYERS, MORE, LAYERS)] for _ in range(ROUNDS)]
        before, more, again = (reduce(joined, rounds) for rounds in zip(*taken, strict=True))
        changed, same = compare_profiles(before, more), compare_profiles(before, again)
        real += changed.step.is_real and changed.step.ratio > 1
        equal += same.is_real
        found.append((changed.step, same.step))
    return Verdicts(real, equal, found)


def profiling_tables(found: Profiling, table: Callable[[Sequence[str], Any], str]) -> str:
    """What agrees and what is told apart; the overheads have tables of their own."""
    rows = []
    for one in found.agreements:
        kernels = f"{one.kernels.median:.3f} ({one.kernels.low:.2f}–{one.kernels.high:.2f})"
        rows.append((one.name, f"{one.parts.median:.3f}", kernels))
    verdict = found.verdicts
    pairs = len(verdict.changes)
    changed, same = zip(*verdict.changes, strict=True)
    quiet = [_span([each.ratio for each in kind]) for kind in (changed, same)]
    clock = [_span([each.after / each.before for each in kind]) for kind in (changed, same)]
    told = (
        f"`profile compare`, {ROUNDS} rounds of {COMPARED} steps in turn: {LAYERS} layers against {MORE} "
        f"were called slower in {verdict.real} of {pairs} pairs ({quiet[0]}); two equal ones were told apart "
        f"in {verdict.equal} of {pairs} ({quiet[1]}). Medians on the clock said {clock[0]} and {clock[1]}."
    )
    return table(("", "parts, × the step", "parts, × torch.profiler's own times"), rows) + "\n\n" + told


def _span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"
