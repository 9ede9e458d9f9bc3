"""The profiler as a library: time a model's modules, or pieces of a program by name.

with layerstep.profiling(model) as profiler:
    train()
print(profiler.report())
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from layerstep.config import is_disabled, load_config
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.profile.advice import Advice
from layerstep.profile.compare import saved_of, store
from layerstep.profile.report import Measured, StepSpread
from layerstep.profile.state import ProfileState, state_of
from layerstep.profile.trace import chrome_trace

__all__ = ["LayerTime", "ProfileReport", "Profiler", "profiling"]


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One module, one timer, or `data`, `loss`, `optimizer`: the seconds of a typical step.

    A typical time is the mean of the middle half of the steps, so own times add up to `step_seconds`.
    """

    name: str
    kind: str
    calls: int
    """In all."""
    own: float
    total: float
    forward: float = 0.0
    backward: float = 0.0
    share: float = 0.0
    """Share of the step; for a timer, of the time of all timers."""
    parameters: int = 0
    flops: int = 0
    flops_per_second: float = 0.0
    saved_bytes: int = 0
    """Bytes that it keeps itself for the backward in one forward."""
    peak_bytes: int = 0
    """The most bytes alive in a call beyond what was there before, without gradients."""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """What was measured: the step, its layers, the named timers, and what the numbers advise."""

    steps: int
    step_seconds: float
    samples_per_second: float
    tokens_per_second: float
    own_cost_seconds: float
    """Seconds of the profiler's own work in a step, which is in none of the times."""
    layers: tuple[LayerTime, ...]
    timers: tuple[LayerTime, ...]
    advice: tuple[Advice, ...] = ()
    unit: str = "training step"
    """What a step is: a training step, or a forward where no optimizer stepped."""

    def layer(self, name: str) -> LayerTime:
        found = next((each for each in (*self.layers, *self.timers) if each.name == name), None)
        if found is None:
            raise UserError(f"no time of {name!r} was taken")
        return found

    def __str__(self) -> str:
        lines = []
        if self.steps:
            lines.append(f"{self.steps} {self.unit}s, a typical one takes {1e3 * self.step_seconds:.3g} ms")
        elif not self.timers:
            lines.append("no step was timed")
        for each in sorted((*self.layers, *self.timers), key=lambda one: -one.own):
            lines.append(f'Layer "{each.name}": {1e3 * each.own:.3g} ms ({each.share:.0%} of total)')
        return "\n".join([*lines, *(f"{each.name}: {each.says}" for each in self.advice)])


@dataclass(slots=True)
class _Timer:
    kind: str = ""
    seconds: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    parameters: int = 0


class Profiler:
    """Times the modules of a model between `start()` and `stop()`, and whatever is timed by name.

        profiler = Profiler(model)
        profiler.start()
        ...                                   # training steps, or forwards
        profiler.stop()
        profiler.report().layer("encoder.0").total

    `start_timer(name)` and `end_timer(name)` time any piece of code; `record_layer_execution` takes times
    from elsewhere. Without a model, and with `start()`, every model that is called is timed. `warm_up` steps
    are left out.
    """

    def __init__(self, model: nn.Module | None = None, *, warm_up: int = 1) -> None:
        self.model = model
        self.warm_up = warm_up
        self._state: ProfileState | None = None
        self._running: dict[str, list[float]] = {}
        self._timers: dict[str, _Timer] = {}

    def start(self, name: str | None = None) -> None:
        """Begin to time the model; with a name, a timer of that name, as `start_timer` does."""
        if name is not None:
            self.start_timer(name)
            return
        if is_disabled() or (self._state is not None and self._state.session.run.is_attached):
            return
        session = Session(config=load_config())
        if self.model is not None:
            session.add_model(self.model)
        session.attach(discover=self.model is None)
        self._state = state_of(session)
        self._state.start(None, warm_up=self.warm_up)

    def stop(self, name: str | None = None) -> float | None:
        """Stop timing the model; with a name, end that timer and return its seconds."""
        if name is not None:
            return self.end_timer(name)
        if self._state is not None and self._state.session.run.is_attached:
            self._state.profile.stop()
            self._state.session.detach()
            self._state.session.close()
        return None

    def start_timer(self, name: str) -> None:
        """Begin a timer. Timers of one name can nest."""
        self._running.setdefault(name, []).append(time.perf_counter())

    def end_timer(self, name: str) -> float:
        """End the last timer of that name, and return its seconds."""
        begun = self._running.get(name)
        if not begun:
            raise UserError(f"no timer {name!r} is running", "start_timer(name) begins one")
        seconds = time.perf_counter() - begun.pop()
        self._timers.setdefault(name, _Timer()).seconds.append(seconds)
        return seconds

    def record_layer_execution(
        self, name: str, seconds: float, *, kind: str = "", backward: float = 0.0, parameters: int = 0
    ) -> None:
        """Add a layer's time that was measured elsewhere."""
        if seconds < 0 or backward < 0:
            raise UserError(f"{name}: a time cannot be negative")
        timer = self._timers.setdefault(name, _Timer())
        timer.kind, timer.parameters = kind or timer.kind, parameters or timer.parameters
        timer.seconds.append(seconds)
        timer.backward.append(backward)

    def report(self, *, advice: bool = False) -> ProfileReport:
        """What is known so far; `advice` also probes what the machine can do, which takes a moment."""
        measured = self._state.measured() if self._state is not None else None
        return ProfileReport(
            steps=len(measured.steps) if measured is not None else 0,
            step_seconds=measured.seconds if measured is not None else 0.0,
            samples_per_second=measured.throughput[0] if measured is not None else 0.0,
            tokens_per_second=measured.throughput[1] if measured is not None else 0.0,
            own_cost_seconds=StepSpread.of(measured.tool).median if measured is not None else 0.0,
            layers=tuple(_layers(measured)) if measured is not None else (),
            timers=tuple(self._timed()),
            advice=tuple(self._state.advice()) if advice and self._state is not None else (),
            unit=measured.word if measured is not None else "training step",
        )

    def _timed(self) -> Iterator[LayerTime]:
        whole = sum(sum(each.seconds) + sum(each.backward) for each in self._timers.values())
        for name, timer in self._timers.items():
            forward, backward = StepSpread.of(timer.seconds).median, StepSpread.of(timer.backward).median
            spent = sum(timer.seconds) + sum(timer.backward)
            yield LayerTime(
                name,
                timer.kind,
                len(timer.seconds),
                own=forward + backward,
                total=forward + backward,
                forward=forward,
                backward=backward,
                share=spent / whole if whole else 0.0,
                parameters=timer.parameters,
            )

    def save(self, path: str | Path) -> None:
        """Write the steps: as a Chrome trace if it ends in `.trace.json`, else for `profile compare`."""
        if self._state is None or not self._state.profile.steps:
            raise UserError("no step was timed")
        measured = self._state.measured()
        if str(path).endswith("trace.json"):
            import json

            text = json.dumps(chrome_trace(measured, self._state.profile.notes))
            Path(path).write_text(text, encoding="utf-8")
        else:
            store(saved_of(measured), Path(path))


def _layers(measured: Measured) -> Iterator[LayerTime]:
    for row in measured.rows:
        own, total = measured.typical(row.own), measured.typical(row.total)
        yield LayerTime(
            row.path,
            row.kind,
            0 if row.is_outside else sum(row.calls),
            own=own,
            total=total,
            forward=measured.typical(row.forward),
            backward=measured.typical(row.backward),
            share=measured.share(row),
            parameters=row.parameters,
            flops=row.flops,
            flops_per_second=measured.rate(row),
            saved_bytes=row.saved,
            peak_bytes=row.needed,
        )


@contextlib.contextmanager
def profiling(
    model: nn.Module | None = None, output_file: str | Path | None = None, *, warm_up: int = 1
) -> Iterator[Profiler]:
    """Time a block of code; without a model, every model that is called in it.

    `output_file` gets the steps when the block ends: `.trace.json` for Perfetto, else for `profile compare`.
    """
    profiler = Profiler(model, warm_up=warm_up)
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        has_steps = profiler._state is not None and bool(profiler._state.profile.steps)
        if output_file is not None and has_steps:
            profiler.save(output_file)
