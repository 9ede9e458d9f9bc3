"""The results of a profile: times by module over the steps, their median and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from layerstep.profile.call_times import OUTSIDE, Cost, StepTime, fold
from layerstep.profile.profiling import Profile
from layerstep.profile.stamps import DeviceStamps
from layerstep.profile.steps import Timed

__all__ = ["BETWEEN", "UNSEEN", "Measured", "Row", "StepSpread", "by_type", "measure"]

BETWEEN = "between forwards"
UNSEEN = "unseen"
"""A training step without a call of a module: what it does before its optimizer."""
"""The row for the time outside the model, where nothing is trained."""


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The middle of some numbers, and the range of their middle half."""

    median: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> StepSpread:
        if not values:
            return cls()
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(slots=True)
class Row:
    """The times of a module, or of what runs outside all modules, step by step, in seconds."""

    path: str
    kind: str = ""
    parent: str = ""
    parameters: int = 0
    flops: int = 0
    """FLOP of all its calls in one forward, including the modules that it calls."""
    own_flops: int = 0
    work: float = 0.0
    """Its own FLOP in all forwards of a step."""
    saved: int = 0
    """Bytes that it keeps itself for the backward in one forward."""
    needed: int = 0
    """The most bytes alive in a call beyond what was there before, without gradients."""
    calls: list[int] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    total_forward: list[float] = field(default_factory=list)
    total_backward: list[float] = field(default_factory=list)

    @property
    def is_outside(self) -> bool:
        return not self.kind

    @property
    def own(self) -> list[float]:
        return [f + b for f, b in zip(self.forward, self.backward, strict=True)]

    @property
    def total(self) -> list[float]:
        return [f + b for f, b in zip(self.total_forward, self.total_backward, strict=True)]


@dataclass(slots=True)
class Measured:
    """Everything that is known about the steps of a profile."""

    rows: list[Row]
    steps: list[float]
    """Seconds of each step, without our own work."""
    tool: list[float]
    is_training: bool
    samples: list[float] = field(default_factory=list)
    """A second, in each step."""
    tokens: list[float] = field(default_factory=list)
    pace: list[list[float]] = field(default_factory=list)
    """Seconds of the fixed work that tells the pace of the machine, each time it ran after a step."""
    device: str = "cpu"
    """The device with most of the weights."""
    is_host: bool = True
    """Are these times of the processor, or of events of the device?"""
    note: str = ""
    """What a reader of the times must know about the device."""
    events: list[float] = field(default_factory=list)
    """Seconds that the host spends on the events of each step. They are not subtracted."""
    left_out: int = 0
    beside: tuple[str, ...] = ()
    """The commands of what else was on: its work is in these times."""
    too_long: int = 0
    unit: str = ""
    """The model that the forwards are of, where there are several."""
    untimed: tuple[str, ...] = ()
    times: list[StepTime] = field(default_factory=list)
    modules: list[Timed] = field(default_factory=list)
    _middle: tuple[int, ...] = ()

    @property
    def step(self) -> StepSpread:
        return StepSpread.of(self.steps)

    @property
    def middle(self) -> tuple[int, ...]:
        """The numbers of the steps in the middle half by time. A typical step is their mean.

        As with a median, one slow step does not matter; as with a mean, the parts add up.
        """
        if not self._middle:
            order = sorted(range(len(self.steps)), key=self.steps.__getitem__)
            cut = len(order) // 4
            self._middle = tuple(sorted(order[cut : len(order) - cut]))
        return self._middle

    def typical(self, values: Sequence[float]) -> float:
        """The value for a typical step, from one value for each step."""
        return sum(values[at] for at in self.middle) / len(self.middle) if self.middle else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a typical step: the sum of the rows' own times."""
        return self.typical(self.steps)

    @property
    def throughput(self) -> tuple[float, float]:
        """Samples and tokens a second."""
        samples = self.typical([step.samples for step in self.times])
        tokens = self.typical([step.tokens for step in self.times])
        return (samples / self.seconds, tokens / self.seconds) if self.seconds else (0.0, 0.0)

    def share(self, row: Row) -> float:
        """Its own share of a typical step."""
        return self.typical(row.own) / self.seconds if self.seconds else 0.0

    def rate(self, row: Row) -> float:
        """The floating-point operations a second of its own work in the forward."""
        spent = self.typical(row.forward)
        return row.work / spent if spent > 0 else 0.0

    @property
    def is_blind(self) -> bool:
        """Do the times come from another device than the work? Then they give no rate."""
        return self.is_host and self.device != "cpu"

    def row(self, path: str) -> Row | None:
        return next((row for row in self.rows if row.path == path), None)

    @property
    def word(self) -> str:
        return "training step" if self.is_training else "forward"


def measure(profile: Profile, cost: Cost | None = None) -> Measured:
    """Compute the times of every step that was kept."""
    stamps = profile.clock.stamps
    profile.steps.settle(stamps)
    times = []
    for step in profile.steps:
        folded = fold(step.marks, is_training=step.is_training, cost=cost)
        folded.samples, folded.tokens = step.samples, step.tokens
        times.append(folded)
    found = gather(
        times,
        profile.modules,
        is_training=profile.is_training,
        device=stamps.device,
        left_out=profile.left_out,
        untimed=tuple(profile.untimed),
    )
    found.is_host, found.note, found.beside = stamps.is_host, stamps.note, tuple(sorted(profile.beside))
    found.too_long, found.unit = profile.too_long, profile.borders.unit if not profile.is_training else ""
    if isinstance(stamps, DeviceStamps):
        found.events = [stamps.cost * len(step.marks) for step in profile.steps]
    found.pace = [step.pace for step in profile.steps]
    return found


def gather(
    times: list[StepTime],
    modules: Sequence[Timed],
    *,
    is_training: bool,
    device: str = "cpu",
    left_out: int = 0,
    untimed: tuple[str, ...] = (),
) -> Measured:
    """The rows of a table from the times of each step."""
    rows: dict[str, Row] = {}
    outside = {name: Row(name) for name in OUTSIDE} if is_training else {"data": Row(BETWEEN)}
    if is_training and not any(step.calls for step in times):
        outside["data"] = Row(UNSEEN)
    for number, step in enumerate(times):
        _add_calls(step, number, modules, rows)
        for name, row in outside.items():
            spent = step.outside[name] / 1e9
            for values in (row.forward, row.total_forward):
                values.append(spent)
            for values in (row.backward, row.total_backward):
                values.append(0.0)
            row.calls.append(1)
    seconds = [step.total / 1e9 for step in times]
    return Measured(
        [*_padded(rows.values(), len(times)), *outside.values()],
        seconds,
        [step.tool / 1e9 for step in times],
        is_training,
        samples=[step.samples / s for step, s in zip(times, seconds, strict=True) if s and step.samples],
        tokens=[step.tokens / s for step, s in zip(times, seconds, strict=True) if s and step.tokens],
        device=device,
        left_out=left_out,
        untimed=untimed,
        times=times,
        modules=list(modules),
    )


def _add_calls(step: StepTime, number: int, modules: Sequence[Timed], rows: dict[str, Row]) -> None:
    for call, (forward, backward) in zip(step.calls, step.totals(), strict=True):
        module = modules[call.key]
        row = rows.get(module.path)
        if row is None:
            above = modules[step.calls[call.parent].key].path if call.parent >= 0 else ""
            row = rows[module.path] = Row(module.path, module.kind, above, module.parameters)
        _pad(row, number + 1)
        row.calls[-1] += 0 if call.is_recomputation else 1
        row.forward[-1] += call.forward / 1e9
        row.backward[-1] += call.backward / 1e9
        row.total_forward[-1] += forward / 1e9
        row.total_backward[-1] += backward / 1e9


def _pad(row: Row, length: int) -> None:
    for values in (row.forward, row.backward, row.total_forward, row.total_backward):
        values.extend([0.0] * (length - len(values)))
    row.calls.extend([0] * (length - len(row.calls)))


def _padded(rows: Iterable[Row], length: int) -> list[Row]:
    """A module that some steps did not call took no time in them."""
    found = list(rows)
    for row in found:
        _pad(row, length)
    return found


def by_type(rows: Iterable[Row]) -> list[Row]:
    """One row for each class of modules, with the sum of their own times."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.is_outside:
            found[row.path] = row
            continue
        into = found.setdefault(row.kind, Row(row.kind, row.kind))
        _pad(into, len(row.forward))
        into.parameters += row.parameters
        into.own_flops += row.own_flops
        into.work += row.work
        into.saved += row.saved
        into.needed = max(into.needed, row.needed)
        into.calls = [a + b for a, b in zip(into.calls, row.calls, strict=True)]
        into.forward = _sum(into.forward, row.forward)
        into.backward = _sum(into.backward, row.backward)
        into.total_forward, into.total_backward = into.forward, into.backward
        into.flops = into.own_flops
    return list(found.values())


def _sum(one: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]
