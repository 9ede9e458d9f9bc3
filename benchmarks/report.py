"""Tables of what was measured, for the screen and for the page in docs/."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.inspector import LINE, WAYS, Inspection, Looks
from benchmarks.measure import Effort, Latency, Overhead, Spread, StartUp
from benchmarks.memory import MEMORY
from benchmarks.ops import OpCosts, ops_tables
from benchmarks.profiling import PROFILED, PROFILERS, Profiling, profiling_tables
from benchmarks.tables import machine, table
from benchmarks.training import RECORDED, TRAINING
from benchmarks.variants import (
    ALL_COMPUTING,
    ALL_CONDITIONS,
    ALL_POINTS,
    ALL_POINTS_NO_BACK,
    ALL_RECORDED,
    ALL_STEPS,
    ALL_STEPS_NO_BACK,
    BARE,
    BARE_AGAIN,
    COMPUTING_BY_HAND,
    EXIT_HOOKS,
    NOTHING_ARMED,
    VARIANTS,
    Variant,
)

__all__ = [
    "PAGE",
    "Goals",
    "Results",
    "forward_section",
    "page",
    "screen",
    "tensor_section",
    "with_range",
    "write_section",
]

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "benchmarks.md"

FORWARD_HEADING, TENSOR_HEADING = "## What it costs", "## Tensors"
MOST_REAL = 1.01
MOST_TINY = 0.2
MOST_HOOKS = {ALL_POINTS: 1.2, ALL_POINTS_NO_BACK: 1.2, ALL_STEPS: 1.5, ALL_STEPS_NO_BACK: 1.5}
MOST_CONDITION = 5.0
MOST_RECORD_TINY = 60.0
MOST_RECORD = 1.15
MOST_MS = 50
MOST_IMPORT_MS = 90
MOST_SUMS = {"float32": 3.5, "bfloat16": 6.0}
MOST_MB = 16
MOST_RECORDED = 1.05
MOST_PROFILED = 1.05


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that one run of the benchmarks found."""

    effort: Effort
    overheads: list[Overhead]
    start_up: list[StartUp]
    latencies: list[Latency]
    inspection: Inspection
    training: list[Overhead]
    ops: OpCosts
    memory: Overhead
    profiling: Profiling
    load: tuple[float, float]
    """The load average of the machine when the run began and when it ended."""


def with_range(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}–{spread.high:.{digits}f})"


def overhead_table(found: Overhead, variants: Sequence[Variant] = VARIANTS) -> str:
    """A row for each variant, also for those that could not run."""
    rows = []
    for variant in variants:
        if found.has(variant):
            digits = 1 if variant.is_heavy else 3
            cpu, wall = (with_range(found.ratio(variant, clock=clock), digits) for clock in ("cpu", "wall"))
            rows.append((variant.name, cpu, wall, f"{found.added(variant).median:+.2f}"))
        elif not variant.of_tensors or found.case.returns_tensors:
            rows.append((variant.name, "raises" if variant.name in found.failed else "not installed", "", ""))
    return table(("", "CPU time, × bare", "wall time, × bare", "µs per module call"), rows)


def start_up_table(found: list[StartUp]) -> str:
    rows = [
        (
            f"`{one.statement}`",
            with_range(one.total, 0),
            with_range(one.own, 1),
            with_range(one.collector, 1),
        )
        for one in found
    ]
    return table(("a fresh process", "ms", "after `import torch`", "of that, the collector"), rows)


def latency_table(found: list[Latency]) -> str:
    rows = [(one.name, with_range(one.first, 1), with_range(one.later, 1)) for one in found]
    return table(("on 10,000 modules", "the first answer, ms", "after a stop, ms"), rows)


def look_table(found: Looks) -> str:
    """A row for each way to look, also for those that could not."""
    rows = []
    for way in WAYS:
        size = f"{found.elements(way):,}"
        if way.is_missing or way.name in found.failed:
            rows.append((way.name, size, found.failed.get(way.name, "not installed"), ""))
        else:
            ratio, each = found.ratio(way), found.per_element(way)
            rows.append((way.name, size, with_range(ratio, 1), with_range(each, 2)))
    return table((found.dtype, "elements", "× `t.sum()`", "ns per element"), rows)


def look_notes(found: Inspection) -> str:
    extra = ", ".join(f"{one.extra:.1f} MB for {one.dtype}" for one in found.looks)
    return (
        f"Beside the tensor, layerstep took {extra}. The lines of 1,000 weights of 64 × 64 took "
        f"{with_range(found.layers, 0)} ms."
    )


class Goals:
    """What is aimed at, beside what was found."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str]] = []

    def add(self, text: str, most: float, found: Spread, form: str) -> None:
        met = "yes" if found.median <= most else "unclear" if found.low <= most else "no"
        self._rows.append((text, form.format(most), form.format(found.median), met))

    def table(self) -> str:
        return table(("goal", "at most", "found", "met"), self._rows)


def forward_goals(overheads: Sequence[Overhead]) -> str:
    goals = Goals()
    for found in overheads:
        name = found.case.name
        for armed, most in MOST_HOOKS.items():
            same = f"{ALL_POINTS.name}, `back off`" if armed is ALL_POINTS_NO_BACK else armed.name
            text = f"{same}, {name}"
            goals.add(text, most, found.ratio(armed, EXIT_HOOKS), "{:.2f} × no-op exit hooks")
        if found.case.is_real:
            goals.add(f"nothing armed, {name}", MOST_REAL, found.ratio(NOTHING_ARMED), "{:.3f} × bare")
            goals.add(f"{ALL_RECORDED.name}, {name}", MOST_RECORD, found.ratio(ALL_RECORDED), "{:.3f} × bare")
            continue
        each = f"{name}, per module call"
        goals.add(f"nothing armed, {each}", MOST_TINY, found.added(NOTHING_ARMED), "{:+.2f} µs")
        goals.add(f"{ALL_CONDITIONS.name}, {each}", MOST_CONDITION, found.added(ALL_CONDITIONS), "{:+.2f} µs")
        text = f"{ALL_COMPUTING.name}, {each}, over the expression in hooks"
        goals.add(text, MOST_CONDITION, found.added(ALL_COMPUTING, COMPUTING_BY_HAND), "{:+.2f} µs")
        goals.add(f"{ALL_RECORDED.name}, {each}", MOST_RECORD_TINY, found.added(ALL_RECORDED), "{:+.2f} µs")
    return goals.table()


def tensor_goals(inspection: Inspection) -> str:
    goals = Goals()
    for look in inspection.looks:
        most = MOST_SUMS[look.dtype]
        goals.add(f"the tensor line, {look.dtype}", most, look.ratio(LINE), "{:.1f} × `t.sum()`")
        goals.add(f"memory beside the tensor, {look.dtype}", MOST_MB, Spread.of([look.extra]), "{:.1f} MB")
    return goals.table()


def goal_table(results: Results) -> str:
    """The goals of all that has no goals in its own section."""
    goals = Goals()
    for one in results.start_up[1:]:
        goals.add(f"`{one.statement}`, after torch", MOST_IMPORT_MS, one.own, "{:.0f} ms")
    for answer in results.latencies:
        goals.add(f"{answer.name}, 10,000 modules, after a stop", MOST_MS, answer.later, "{:.0f} ms")
    for step in results.training:
        goals.add(f"{RECORDED.name}, {step.case.name}", MOST_RECORDED, step.ratio(RECORDED), "{:.3f} × bare")
    for step in results.profiling.overheads:
        goals.add(f"{PROFILED.name}, {step.case.name}", MOST_PROFILED, step.ratio(PROFILED), "{:.3f} × bare")
    return goals.table()


def noise(overheads: Sequence[Overhead], load: tuple[float, float]) -> str:
    """How far to trust the digits."""
    again = [found.ratio(BARE_AGAIN) for found in overheads]
    low, high = min(spread.low for spread in again), max(spread.high for spread in again)
    begin, end = load
    return (
        f"The bare model measured against itself came out between {low:.3f} and {high:.3f} (the middle half "
        f"of the rounds), so a difference smaller than that says nothing. The load average of the machine "
        f"was {begin:.1f} at the beginning and {end:.1f} at the end; by itself this run makes it about 1."
    )


def forward_section(overheads: Sequence[Overhead], load: tuple[float, float]) -> str:
    """What a forward costs, as it is on the page."""
    parts = [FORWARD_HEADING]
    for found in overheads:
        parts += [f"### {_title(found)}", overhead_table(found)]
    rounds = f"Rounds: {len(overheads[0].rounds)}. {noise(overheads, load)}"
    return "\n\n".join([*parts, GOAL_WORDS, forward_goals(overheads), rounds])


def tensor_section(inspection: Inspection) -> str:
    """What a look at a tensor costs, as it is on the page."""
    looks = [*map(look_table, inspection.looks), look_notes(inspection)]
    return "\n\n".join([TENSOR_HEADING, _TENSOR_WORDS, *looks, tensor_goals(inspection)])


def screen(results: Results) -> str:
    parts = []
    for found in results.overheads:
        parts += [_title(found), overhead_table(found)]
    for found in results.training:
        parts += [_title(found), overhead_table(found, TRAINING)]
    parts += [_profiling(results.profiling, "{title}"), ops_tables(results.ops, table)]
    parts += [f"memory, {_title(results.memory)}", overhead_table(results.memory, MEMORY)]
    parts += [start_up_table(results.start_up), latency_table(results.latencies)]
    parts += [tensor_section(results.inspection), forward_goals(results.overheads), goal_table(results)]
    return "\n\n".join([*parts, noise(results.overheads, results.load)])


def _profiling(found: Profiling, heading: str) -> str:
    parts = []
    for one in found.overheads:
        parts += [heading.format(title=_title(one)), overhead_table(one, PROFILERS)]
    return "\n\n".join([*parts, profiling_tables(found, table)])


def _title(found: Overhead) -> str:
    bare = Spread.of(times[BARE.name].wall * 1e3 for times in found.rounds).median
    return f"{found.case.name}: {found.calls} module calls, {bare:.2f} ms bare"


def write_section(text: str) -> None:
    """Put a section into the page in place of the one with its heading."""
    heading = text.partition("\n")[0]
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")
    after = rest.partition("\n## ")[2] if found else ""
    ending = f"\n## {after}" if after else ""
    PAGE.write_text(f"{before.rstrip()}\n\n{text.rstrip()}\n{ending}", encoding="utf-8")


def page(results: Results) -> str:
    """The page of the documentation."""
    return _PAGE.format(
        rounds=results.effort.rounds,
        heavy=results.effort.heavy_rounds,
        processes=results.effort.processes,
        answers=results.effort.answers,
        forwards=forward_section(results.overheads, results.load),
        training="\n\n".join(
            f"### {_title(found)}\n\n{overhead_table(found, TRAINING)}" for found in results.training
        ),
        ops=ops_tables(results.ops, table),
        memory=f"### {_title(results.memory)}\n\n{overhead_table(results.memory, MEMORY)}",
        profiling=_profiling(results.profiling, "### {title}"),
        start_up=start_up_table(results.start_up),
        latencies=latency_table(results.latencies),
        tensors=tensor_section(results.inspection),
        goal_words=GOAL_WORDS,
        goals=goal_table(results),
        machine=machine(),
        versions=table(("", "version"), [("Python", platform.python_version()), *_versions()]),
    )


def _versions() -> Iterable[tuple[str, str]]:
    for package in (
        "torch",
        "layerstep",
        "transformers",
        "nnsight",
        "torchlens",
        "pyinstrument",
        "lovely-tensors",
        "treescope",
    ):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


GOAL_WORDS = (
    "Ratios are of CPU time. *Unclear*: the median misses the goal, a quarter of the rounds or more meets it."
)
_TENSOR_WORDS = """\
The figures of the tensor line (counts of NaN, Inf and zeros, extremes, mean, std), and all that `stats`
counts (also signs, subnormals, norms and the mean magnitude), exactly, on one thread. Each way runs right
after a `t.sum()` of the same elements; slow ones are given fewer, and treescope shows figures only below
100,000. What limits it: numpy has no kernel for several figures at once, so each is a pass of its own over a
block in the cache, six for the line and nine for all. The extremes and zeros of bfloat16 are told from its
bits. `python -m benchmarks.sections --tensors --write` measures this part alone."""

_PAGE = """\
<!-- Written by `python -m benchmarks --write`; do not edit. -->
# Benchmarks

What a run costs with layerstep on it, against the bare model and against the tools people use now.
This page is generated: `pip install -e '.[bench]'`, then `python -m benchmarks --write` measures again and
writes it anew; without `--write` the same tables go to the screen.

## What is measured, and how

A forward in eval mode without gradients, on one thread, with the garbage collector off. All variants run in
one process: each of {rounds} rounds takes every variant once, in a new order. To take a variant is to set it
up, run it a few times untimed, take the fastest of some timed forwards, take everything off again, and check
that no hook is left. The tables show the median, over the rounds, of the ratio to the bare forward of the
same round, and in brackets the range of the middle half.

- **bare, again**: the bare model measured a second time. What it differs by is noise.
- **nothing armed**: the model under `layerstep run`, which finds models as they are called; no points.
- **`break PATH if …`**: one breakpoint in the middle of the model; its condition is asked in every forward
  and never holds.
- **`break **`**: a breakpoint on every module, each hit counted, none stopped at. While the run may stop, a
  snapshot for `back` is taken at the entry of each forward; `back off` takes none.
- **`break ** if …`**: a condition asked at every module, which never holds; and the same expression in hooks.
- **`record **`**: the statistics of each output are kept; and the same figures by torch in hooks, kept as a
  tuple of numbers.
- **`next` that never ends**: every module reports to the stepper, which finds its depth and goes on.
- **no-op hooks**: what torch itself takes for empty hooks (`with_kwargs=True`) on all modules.
- **nnsight**: a trace that saves the output of the model.
- **torchlens**: a forward logged, no activations saved; so slow that it has one forward a round, in {heavy}
  of the rounds.

`python -m benchmarks.sections --forwards --write` measures the next part alone.

{forwards}

## Training steps

Forward, backward and an SGD step with a rate of 0, in training mode, measured in the same way, in a third
of the rounds.

- **`break … backward if False`**: a point in the backward pass, asked and never stopping. All calls of the
  forward are noted and followed, whether there is one point or one on every module.
- **`grad record`**: norm, mean and maximum of every parameter's gradient kept at every step.
- **a hook with `.item()`**: a hook on each parameter that takes the norm to the host, as watching tools do.
- **`register_full_backward_hook`**: empty ones on all modules; torch refuses them on layers in place.

{training}

## Profiling

The same training steps under profilers, in a third of the rounds. `profile on` times every module forward
and backward, which the hooks beside it do for the forward only.

{profiling}

## Ops

The forward again, op by op, in half of the rounds. Beside torch's own modes that do nothing, which is the
least that seeing ops can cost. *Never hit*: no op has the name that is looked for. *Each op counted*:
`step op N` with an N that is never reached; each op finds out which modules are running. A plain
`TorchDispatchMode` imports the compiler at its first op, unless it says that it need not.

{ops}

## Memory

Training steps again, but whole runs of them instead of the fastest: `leaks on` counts live tensors at the
first ten steps and then only as often as keeps that below a twentieth of the time; those ten are not
timed. *Hooks by hand* only see what is saved. *A dispatch mode that does nothing* is the least that
`memory on` can cost.

{memory}

## Start-up

The median of {processes} fresh processes for each line, interleaved, with their bytecode at hand. The garbage
collector is due to look through all of torch's objects soon after `import torch`; whatever is imported then
pays for it.

{start_up}

## Answers

The median of {answers} answers in sessions of their own: the first one, and the same again after a stop,
which looks whether the model has changed.

{latencies}

{tensors}

## Goals

{goal_words}

{goals}

## The machine

{machine}

{versions}
"""
