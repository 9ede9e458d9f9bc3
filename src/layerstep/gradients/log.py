"""Gradients over the training steps, measured before an optimizer steps, and what the step changed.

It keeps numbers and names in arrays, and no tensor from one step to the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from layerstep.gradients.flow import DEFAULT, GradientFlow, Thresholds
from layerstep.gradients.sizes import Size, combined

__all__ = ["Clipping", "GradientEntry", "GradientLog", "RecordedStep", "clipping_of"]

MAX_FRAMES = 200
TOTALS = 10_000
WARM_UP, WINDOW = 10, 200
_NUMBERS = 5  # mean, max and norm of the gradient, norm of the update and of the weight; 8 bytes each


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """The parameters that had a gradient in one training step, and a row of numbers for each."""

    step: int
    names: tuple[str, ...]
    numbers: np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class GradientEntry:
    """One layer or parameter in one step; `ratio` is the norm of the update over that of the weights."""

    step: int
    size: Size
    ratio: float


@dataclass(frozen=True, slots=True)
class Clipping:
    """What the total norms say about a `max_norm` to clip at."""

    steps: int
    """How many steps count: the last 200, without the first 10."""
    percentiles: tuple[tuple[int, float], ...]
    recommended: float
    """The 90th percentile; NaN if there are too few."""
    nonfinite: int
    norms: tuple[float, ...]

    def clipped_by(self, max_norm: float) -> int:
        """How many of the steps this bound would have clipped."""
        return sum(norm > max_norm for norm in self.norms)

    @property
    def ceiling(self) -> float | None:
        """A norm that a tenth of the steps share and none exceeds: the program seems to clip there."""
        top = max(self.norms, default=0.0)
        at_top = sum(norm >= top * (1 - 1e-3) for norm in self.norms)
        return top if at_top >= max(3, 0.1 * len(self.norms)) else None


def clipping_of(totals: Sequence[float]) -> Clipping:
    """Judge the total norms of the steps, the oldest first."""
    window = list(totals)[WARM_UP:][-WINDOW:]
    good = [norm for norm in window if math.isfinite(norm)]
    marks = (10, 50, 90, 99, 100)
    percentiles = tuple(
        zip(marks, (float(x) for x in np.percentile(good, marks)) if good else (), strict=False)
    )
    recommended = dict(percentiles).get(90, math.nan)
    return Clipping(len(window), percentiles, recommended, len(window) - len(good), tuple(good))


class GradientLog:
    """The last steps, a row for each parameter; layers are summed up when they are read."""

    def __init__(self, *, budget: int, max_frames: int = MAX_FRAMES) -> None:
        self._budget = budget
        self._max_frames = max_frames
        self._frames: deque[RecordedStep] = deque()
        self._layers: dict[str, tuple[str, int]] = {}
        """The layer of each parameter and its number of elements, in the order of the model."""
        self.totals: dict[int, deque[float]] = {}
        """The norms of all gradients of each optimizer, by its number."""
        self.stale: tuple[str, int] | None = None
        """A parameter whose gradient is never cleared, and since which step."""

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def steps(self) -> list[int]:
        return [frame.step for frame in self._frames]

    @property
    def last_step(self) -> int:
        return self._frames[-1].step if self._frames else 0

    @property
    def names(self) -> list[str]:
        """Every parameter that ever had a gradient."""
        return list(self._layers)

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(layer for layer, _ in list(self._layers.values())))

    def learn(self, parameters: Iterable[tuple[str, str, int]]) -> None:
        """Names, layers and sizes, in the order of the model."""
        self._layers.update({name: (layer, size) for name, layer, size in parameters})

    def add(self, step: int, names: tuple[str, ...], sizes: Sequence[Size]) -> None:
        """Add the gradients of one optimizer. Those of another in the same step join them."""
        numbers = np.full((len(names), _NUMBERS), np.nan)
        numbers[:, :3] = np.array(sizes, dtype=np.float64).reshape(len(names), 3)
        frame = RecordedStep(step, names, numbers)
        last = self._frames[-1] if self._frames else None
        if last is not None and last.step == step:
            frame = _joined(self._frames.pop(), frame)
        self._frames.append(frame)
        most = max(1, min(self._max_frames, self._budget // max(1, 8 * _NUMBERS * len(names))))
        while len(self._frames) > most:
            self._frames.popleft()

    def add_total(self, optimizer: int, total: float) -> None:
        self.totals.setdefault(optimizer, deque(maxlen=TOTALS)).append(total)

    def add_updates(self, names: Sequence[str], updates: Sequence[float], weights: Sequence[float]) -> None:
        """Add to the last frame what the step changed: norms of the updates and of the weights."""
        frame = self._frames[-1]
        rows = {name: row for row, name in enumerate(frame.names)}
        for name, update, weight in zip(names, updates, weights, strict=True):
            if name in rows:
                frame.numbers[rows[name], 3:] = update, weight

    @property
    def has_updates(self) -> bool:
        return any(bool(np.isfinite(frame.numbers[:, 3]).any()) for frame in self._frames)

    def last_step_of(self, name: str) -> int | None:
        """The last recorded step in which a parameter had a gradient."""
        return next((frame.step for frame in reversed(self._frames) if name in frame.names), None)

    def of(self, path: str) -> list[GradientEntry]:
        """The steps of a layer or parameter, the oldest first."""
        names = {path} if path in self._layers else {n for n, (at, _) in self._layers.items() if at == path}
        return [entry for frame in self._frames if (entry := self._entry(frame, names)) is not None]

    def last(self) -> tuple[int, dict[str, GradientEntry]]:
        """The last recorded step, by layer."""
        frame = self._frames[-1]
        return frame.step, self.by_layer(frame)

    def between(self, after: int, last: int) -> list[RecordedStep]:
        """The steps that were recorded after a step, up to another."""
        found = takewhile(lambda frame: frame.step > after, reversed(self._frames))
        return [frame for frame in found if frame.step <= last][::-1]

    def by_layer(self, frame: RecordedStep) -> dict[str, GradientEntry]:
        """The gradients of one step, by layer."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(frame.names):
            rows.setdefault(self._layers[name][0], []).append(row)
        order = {layer: place for place, layer in enumerate(self.layers)}
        return {
            layer: self._put_together(frame, rows[layer]) for layer in sorted(rows, key=order.__getitem__)
        }

    def _entry(self, frame: RecordedStep, names: set[str]) -> GradientEntry | None:
        rows = [row for row, name in enumerate(frame.names) if name in names]
        return self._put_together(frame, rows) if rows else None

    def _put_together(self, frame: RecordedStep, rows: list[int]) -> GradientEntry:
        sizes = [Size(*map(float, frame.numbers[row, :3])) for row in rows]
        counts = [self._layers[frame.names[row]][1] for row in rows]
        update, weight = (math.hypot(*map(float, frame.numbers[rows, column])) for column in (3, 4))
        ratio = update / weight if weight > 0 else math.nan
        return GradientEntry(frame.step, combined(sizes, counts), ratio)

    def flow(self, *, thresholds: str | Thresholds = DEFAULT) -> GradientFlow:
        """The steps by layer, as a `GradientFlow`."""
        flow = GradientFlow(0, thresholds=thresholds)
        for frame in self._frames:
            flow.record_numbers(frame.step, {name: e.size for name, e in self.by_layer(frame).items()})
        return flow


def _joined(one: RecordedStep, other: RecordedStep) -> RecordedStep:
    kept = [row for row, name in enumerate(one.names) if name not in set(other.names)]
    names = tuple(one.names[row] for row in kept) + other.names
    return RecordedStep(other.step, names, np.concatenate([one.numbers[kept], other.numbers]))
