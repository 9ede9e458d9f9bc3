"""Are two profiles different? Medians with bootstrap intervals, and silence unless the difference is real.

Steps next to each other are alike on a busy machine, so whole blocks of steps are drawn. What a step waited
for a processor is taken out, and it is weighed by the pace of the machine, which a small fixed piece of work
has measured beside it. CPU time must say the same as the clock. The busier the machine, the larger a change
must be: others also take caches and memory, which nothing takes out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layerstep.analysis.profile import Measured
from layerstep.errors import UserError

__all__ = ["Change", "Comparison", "Saved", "change_of", "compare_profiles", "load", "saved_of", "store"]

ROUNDS = 2000
CONFIDENCE = 0.99
LEAST_EFFECT = 0.05
"""A change below this is not told, however sure it is."""
LEAST_BOUND = 0.01
"""The interval must stay this far from no change."""
FEWEST = 8
TRIMMED = 0.1
"""The slowest part of the steps is left out: those in which the machine did something else."""
BUSY_EFFECT = 0.4
"""Added to the least effect, times the part of the time that others had the processor.

Measured with 6 runnable threads on 2 processors: CPU times of equal profiles then lie 7 % apart (sd).
"""
WAITING = 0.5
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """The samples of a profile, step by step, in seconds: all that a comparison needs."""

    word: str
    wall: list[float]
    cpu: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)
    """Seconds of the small fixed work beside each step."""
    own: dict[str, list[float]] = field(default_factory=dict)
    """The own time of each module and of what is outside, in each step."""
    device: str = "cpu"
    waited: list[float] = field(default_factory=list)
    """Seconds of each step in which others had the processor."""

    @property
    def net(self) -> list[float]:
        """The steps without those."""
        if len(self.waited) != len(self.wall):
            return self.wall
        return [max(wall - lost, wall / 100) for wall, lost in zip(self.wall, self.waited, strict=True)]

    @property
    def busy(self) -> float:
        """The part of the time in which others had the processor."""
        return 1 - sum(self.net) / sum(self.wall) if sum(self.wall) else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """From one profile to another, as a ratio of the medians with its interval."""

    ratio: float
    low: float
    high: float
    is_real: bool
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """The step, and the modules whose time has changed."""

    step: Change
    cpu: Change | None
    modules: dict[str, Change]
    waits: bool = False
    """In both profiles the processor worked for less than half of the time."""
    busy: float = 0.0
    """The part of the time in which others had the processor, in the worse of the two."""
    least: float = 0.0
    """No change below this is told."""

    @property
    def is_real(self) -> bool:
        """Both clocks say so, in the same direction; where the steps mostly wait, that on the wall alone."""
        if self.cpu is None or self.waits:
            return self.step.is_real
        same = (self.step.ratio > 1) == (self.cpu.ratio > 1)
        return self.step.is_real and self.cpu.is_real and same


def saved_of(measured: Measured) -> Saved:
    """What to keep of a profile."""
    own = {row.path: row.own for row in measured.rows}
    return Saved(
        measured.word, measured.steps, measured.cpu, measured.pace, own, measured.device, measured.waited
    )


def store(saved: Saved, path: Path) -> None:
    path.write_text(json.dumps({"layerstep_profile": FORMAT, **asdict(saved)}), encoding="utf-8")


def load(path: Path) -> Saved:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("layerstep_profile") != FORMAT:
            raise UserError(f"{path} is a profile of another version")
        return Saved(**found)
    except OSError as error:
        raise UserError(f"cannot read {path}", error.strerror or "") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no saved profile", "`profile save NAME.json` writes one") from None


def compare_profiles(before: Saved, after: Saved) -> Comparison:
    """What has changed from one to the other."""
    for saved in (before, after):
        if len(saved.wall) < FEWEST:
            raise UserError(
                f"{len(saved.wall)} steps are too few to compare", f"at least {FEWEST}; 30 is good"
            )
    busy = max(before.busy, after.busy)
    least = LEAST_EFFECT + BUSY_EFFECT * busy
    step = change_of(_paced(before.net, before), _paced(after.net, after), least=least)
    cpu = None
    if before.cpu and after.cpu:
        cpu = change_of(_paced(before.cpu, before), _paced(after.cpu, after), least=least)
    whole = float(np.median(before.wall))
    modules = {}
    for path in [path for path in before.own if path in after.own]:
        one, other = before.own[path], after.own[path]
        moved = abs(float(np.median(other)) - float(np.median(one)))
        if moved < whole * LEAST_EFFECT / 5:
            continue
        change = change_of(_paced(one, before), _paced(other, after), least=least)
        if change.is_real:
            modules[path] = change
    waits = cpu is not None and all(
        np.median(saved.cpu) < WAITING * np.median(saved.net) for saved in (before, after)
    )
    return Comparison(step, cpu, modules, bool(waits), busy, least)


def _paced(values: Sequence[float], saved: Saved) -> list[float]:
    """The values as if the machine had always gone at the same pace."""
    if len(saved.pace) != len(values) or not saved.pace:
        return list(values)
    window = 2
    paces = np.asarray(saved.pace)
    smooth = [float(np.median(paces[max(0, at - window) : at + window + 1])) for at in range(len(paces))]
    return [value / pace * REFERENCE for value, pace in zip(values, smooth, strict=True)]


REFERENCE = 1e-3
"""The pace that times are given in: so that they stay of the size of seconds."""


def change_of(
    before: Sequence[float], after: Sequence[float], *, seed: int = 0, least: float = LEAST_EFFECT
) -> Change:
    """The ratio of the trimmed medians, and the interval that a bootstrap of blocks gives it."""
    one, other = _trimmed(before), _trimmed(after)
    if not len(one) or not len(other) or np.median(one) <= 0:
        return Change(1.0, 0.0, float("inf"), False)
    generator = np.random.default_rng(seed)
    drawn = _medians(other, generator) / np.maximum(_medians(one, generator), 1e-18)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    ratio = float(np.median(other) / np.median(one))
    is_far = low > 1 + LEAST_BOUND or high < 1 - LEAST_BOUND
    is_large = max(ratio, 1 / ratio) - 1 >= least if ratio > 0 else True
    return Change(
        ratio,
        float(low),
        float(high),
        bool(is_far and is_large),
        float(np.median(before)),
        float(np.median(after)),
    )


def _trimmed(values: Sequence[float]) -> Any:
    """In the order of time, without the slowest."""
    found = np.asarray(values, dtype=np.float64)
    if len(found) < FEWEST:
        return found
    return found[found <= np.quantile(found, 1 - TRIMMED)]


def _medians(values: Any, generator: np.random.Generator) -> Any:
    """Medians of draws of whole blocks, in a circle, of about the root of the length."""
    length = len(values)
    block = max(1, round(length**0.5))
    count = -(-length // block)
    starts = generator.integers(0, length, size=(ROUNDS, count, 1))
    at = (starts + np.arange(block)) % length
    return np.median(values[at.reshape(ROUNDS, -1)[:, :length]], axis=1)
