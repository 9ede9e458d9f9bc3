"""The memory profiler as a library: the peak, snapshots by name, what autograd holds, and leaks.

with layerstep.memory_tracking(model) as profiler:
    train()
print(profiler.report())
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from torch import nn

from layerstep.config import is_disabled, load_config
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.memory.census import census_of
from layerstep.memory.devices import Device, devices
from layerstep.memory.forecast import Forecast, forecast
from layerstep.memory.leaks import Leak, find_leaks
from layerstep.memory.meter import meter_of
from layerstep.memory.now import KEPT, Now, look
from layerstep.memory.step import MeasuredStep
from layerstep.tensors.format import human_bytes
from layerstep.tensors.observing import observing

__all__ = ["MemoryProfiler", "MemoryReport", "MemorySnapshot", "memory_tracking"]


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What was alive at one time."""

    name: str
    now: Now
    devices: tuple[Device, ...]

    @property
    def kept(self) -> int:
        """Bytes in parameters, buffers, gradients and the state of optimizers."""
        return sum(map(self.now.total, KEPT))

    @property
    def tensors(self) -> int:
        """Bytes in all tensors that Python knows of."""
        return self.kept + self.now.others

    @property
    def process(self) -> int:
        """Resident bytes of this process."""
        return self.devices[0].used or 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What was measured between `start()` and `stop()`, or until now."""

    snapshots: tuple[MemorySnapshot, ...] = ()
    steps: tuple[MeasuredStep, ...] = ()
    """The last training steps, or forwards where no optimizer stepped."""
    found: tuple[Leak, ...] = field(default=(), repr=False)

    @property
    def peak(self) -> int:
        """The most bytes that tensors had at once: exact in measured steps, else from the snapshots."""
        measured = (step.highest.bytes for step in self.steps)
        return max((*measured, *(each.tensors for each in self.snapshots)), default=0)

    def peak_gb(self) -> float:
        return self.peak / 1e9

    def leaks(self) -> list[Leak]:
        """What piles up from step to step, and what holds it. This needs at least four steps."""
        return list(self.found)

    def saved(self) -> dict[str, int]:
        """The bytes that autograd held in the last step, by module."""
        return dict(self.steps[-1].saved.by_path) if self.steps else {}

    def forecast(self, times: int = 2) -> Forecast | None:
        """What a batch `times` as large would need; None where no step was measured."""
        return forecast(self.steps, times)

    def difference(self, one: str, other: str) -> int:
        """By how many bytes tensors have grown from one snapshot to another."""
        by_name = {each.name: each for each in self.snapshots}
        for name in (one, other):
            if name not in by_name:
                raise UserError(
                    f"there is no snapshot {name!r}", f"there are: {', '.join(by_name) or 'none'}"
                )
        return by_name[other].tensors - by_name[one].tensors

    def __str__(self) -> str:
        lines = [f"peak {human_bytes(self.peak)} in tensors"]
        lines += [
            f"{each.name}: {human_bytes(each.tensors)} in tensors, process {human_bytes(each.process)}"
            for each in self.snapshots
        ]
        if self.steps:
            last = self.steps[-1]
            lines.append(f"{last.label}: autograd held {human_bytes(last.saved.bytes)}")
        lines += [
            f"leak: {leak.tensors:,} × {leak.first}, {leak.holder}" + (f", {leak.line}" if leak.line else "")
            for leak in self.found
        ]
        return "\n".join(lines if self.found else [*lines, "no leaks"])


class MemoryProfiler:
    """Measures memory while a model is used; without a model, in every model that is called.

        profiler = MemoryProfiler(model)
        profiler.start()
        profiler.snapshot("loaded")
        train()
        profiler.stop()
        print(profiler.report().peak_gb(), profiler.report().leaks())

    It changes nothing in the run. `LAYERSTEP=0` makes it inert: reports are then empty.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model
        self._session: Session | None = None
        self._snapshots: dict[str, MemorySnapshot] = {}
        self._last = MemoryReport()

    @property
    def is_on(self) -> bool:
        return self._session is not None

    def start(self) -> Self:
        """Measure from now on, and forget earlier results."""
        if self.is_on or is_disabled():
            return self
        self._snapshots.clear()
        self._session = Session(config=load_config())
        if self.model is not None:
            self._session.add_model(self.model)
        meter_of(self._session).start(None)
        census_of(self._session).start()
        self._session.attach(discover=self.model is None)
        return self

    def snapshot(self, name: str) -> MemorySnapshot | None:
        """Note what is alive now under a name; None while nothing is measured."""
        if self._session is None:
            return None
        with observing():
            kept = MemorySnapshot(name, look(self._session), tuple(devices()))
        self._snapshots[name] = kept
        return kept

    def stop(self) -> MemoryReport:
        """Remove everything that is installed, and return what was found."""
        session, self._session = self._session, None
        if session is None:
            return self._last
        found = self._leaks(session)
        session.detach()
        session.close()
        steps = tuple(meter_of(session).steps)
        self._last = MemoryReport(tuple(self._snapshots.values()), steps, found)
        return self._last

    def report(self) -> MemoryReport:
        """What was found so far, or until `stop()`."""
        if self._session is None:
            return self._last
        steps = tuple(meter_of(self._session).steps)
        return MemoryReport(tuple(self._snapshots.values()), steps, self._leaks(self._session))

    @staticmethod
    def _leaks(session: Session) -> tuple[Leak, ...]:
        with observing():
            return tuple(find_leaks(census_of(session), session.run.models))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def memory_tracking(model: nn.Module | None = None) -> Iterator[MemoryProfiler]:
    """Measure the memory of a block; its `report()` stays when it is over."""
    with MemoryProfiler(model) as profiler:
        yield profiler
