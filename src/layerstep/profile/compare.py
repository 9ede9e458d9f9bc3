"""Compare two profiles, and report a difference only if it is real.

On a machine that others use, the same step takes 1.0 or 1.5 times as long from one second to the next, mostly
because a neighbour shares the core. Three things help. A module takes a fraction of a millisecond, so among
many steps some of its calls fall into a quiet moment: we take the quickest times of every module, forward and
backward each, and add them up. A small fixed piece of work, timed between the steps, tells how quick the
quiet moments were. And a profile may have several rounds, taken in turn with those of the other. Measured on
two shared processors, medians of equal rounds of five seconds differed by 12 % (sd), these sums by 2.5 %
(partly because of where the memory of a model is), and those of four rounds by 0.9 %.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerstep.errors import UserError
from layerstep.profile.report import Measured

__all__ = [
    "LEAST_EFFECT",
    "ProfileComparison",
    "Round",
    "Saved",
    "TimeChange",
    "compare_profiles",
    "joined",
    "load",
    "saved_of",
    "store",
]

LEVELS = (0.01, 0.02)
"""The quantiles whose mean is the quiet time."""
DRAWS = 200
CONFIDENCE = 0.95
LEAST_EFFECT = 0.05
"""A smaller change is not reported, however sure it is."""
ONE_ROUND = 0.09
ONE_SECOND = 0.15
"""The least effect that a profile of one round of one second can show; with four rounds, half of it."""
UNSURE = 0.1
"""This times the change of pace is added to the least effect, because a neighbour slows work differently."""
ALONE = 4
"""How many times larger the change of one module must be: the place of its memory makes 20 % (measured)."""
UNSURE_ALONE = 0.6
"""The same for one module: a product of matrices slows down by 25 % where a GELU does by 5 % (measured)."""
FEWEST = 8
BLOCKS = 8
"""Draw steps in so many pieces of the profile, because neighbouring steps are alike."""
PARTS = 120
"""So many modules are drawn one by one; the rest is small and drawn together."""
SHARE = 0.01
"""A module is listed only if its change is this part of the step."""
FORMAT = 2


@dataclass(frozen=True, slots=True)
class Round:
    """The steps that were timed in one go, in seconds."""

    wall: list[float]
    forward: dict[str, list[float]] = field(default_factory=dict)
    """The own time of each module, and of the parts outside, in each step."""
    backward: dict[str, list[float]] = field(default_factory=dict)
    pace: list[list[float]] = field(default_factory=list)
    """Seconds of the small fixed work, each time that it ran after a step."""

    def own(self, path: str) -> list[float]:
        none = [0.0] * len(self.wall)
        both = zip(self.forward.get(path, none), self.backward.get(path, none), strict=True)
        return [forward + backward for forward, backward in both]


MOST_SECONDS = 1e9
"""Seconds: no step takes longer."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A profile as it is saved: all that a comparison needs."""

    word: str
    rounds: list[Round]
    device: str = "cpu"

    def own(self, path: str) -> list[float]:
        return [each for one in self.rounds for each in one.own(path)]

    @property
    def wall(self) -> list[float]:
        return [each for one in self.rounds for each in one.wall]

    @property
    def paths(self) -> dict[str, None]:
        return {path: None for one in self.rounds for path in one.forward}

    @property
    def has_pace(self) -> bool:
        return self.device == "cpu" and all(sum(map(len, one.pace)) >= FEWEST for one in self.rounds)


@dataclass(frozen=True, slots=True)
class TimeChange:
    """From one profile to another: the ratio at the same pace, its interval, and the medians on the clock."""

    ratio: float
    low: float
    high: float
    is_real: bool
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """The step, the modules whose time has changed, and those that only one of the two has."""

    step: TimeChange
    modules: dict[str, TimeChange]
    added: dict[str, float]
    gone: dict[str, float]
    pace: float
    """How much longer the fixed work took in the second."""
    least: float
    """A smaller change of the step is not reported."""

    @property
    def is_real(self) -> bool:
        return self.step.is_real or bool(self.modules)


def saved_of(measured: Measured) -> Saved:
    """What to keep of a profile."""
    forward = {row.path: row.forward for row in measured.rows}
    backward = {row.path: row.backward for row in measured.rows if any(row.backward)}
    return Saved(measured.word, [Round(measured.steps, forward, backward, measured.pace)], measured.device)


def joined(saved: Saved, more: Saved) -> Saved:
    """Join the rounds of two profiles."""
    if saved.device != more.device or saved.word != more.word:
        hint = f"it has {saved.word}s on {saved.device}, this is a {more.word} on {more.device}"
        raise UserError("these are not rounds of one profile", hint)
    return replace(saved, rounds=saved.rounds + more.rounds)


def store(saved: Saved, path: Path) -> None:
    path.write_text(json.dumps({"layerstep_profile": FORMAT, **asdict(saved)}), encoding="utf-8")


def _is_sound(one: Round) -> bool:
    """Are its samples numbers of seconds, as many for each module as there are steps?"""
    steps = len(one.wall)
    rows = [one.wall, *one.forward.values(), *one.backward.values()]
    has_all = len(one.pace) in (0, steps) and all(len(row) == steps for row in rows)
    return has_all and all(map(_are_seconds, [*rows, *one.pace])) and all(map(all, [one.wall, *one.pace]))


def _are_seconds(row: list[float]) -> bool:
    return isinstance(row, list) and all(
        type(each) in (int, float) and 0 <= each < MOST_SECONDS for each in row
    )


def load(path: Path) -> Saved:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("layerstep_profile") != FORMAT:
            raise UserError(f"{path} is a profile of another version", "save it again")
        rounds = [Round(**each) for each in found["rounds"]]
        if not rounds or not all(map(_is_sound, rounds)):
            raise ValueError("nothing in it")
        return Saved(str(found["word"]), rounds, str(found["device"]))
    except OSError as error:
        raise UserError(f"cannot read {path}", error.strerror or "") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is not a saved profile", "`profile save NAME.json` writes one") from None


def compare_profiles(before: Saved, after: Saved) -> ProfileComparison:
    """Find what has changed from one profile to the other."""
    for saved in (before, after):
        fewest = min(len(one.wall) for one in saved.rounds)
        if fewest < FEWEST:
            hint = f"at least {FEWEST}, and some seconds of them"
            raise UserError(f"{fewest} steps are too few to compare", hint)
    if before.device != after.device:
        raise UserError(f"one was taken on {before.device}, the other on {after.device}")
    generator = np.random.default_rng(0)
    has_pace = before.has_pace and after.has_pace
    one, other = (_Drawn(saved, generator, has_pace=has_pace) for saved in (before, after))
    pace = other.pace - one.pace
    sure = _sure(before, after) if before.device == "cpu" else LEAST_EFFECT
    least = sure + UNSURE * abs(pace)
    step = _change(one.whole, other.whole, least, (before.wall, after.wall))
    whole = float(np.median(before.wall))
    modules = {}
    for path in one.paths & other.paths:
        clocked = before.own(path), after.own(path)
        found = _change(one.of(path), other.of(path), ALONE * sure + UNSURE_ALONE * abs(pace), clocked)
        if found.is_real and abs(found.ratio - 1) * found.before >= SHARE * whole:
            modules[path] = found
    added, gone = _only(after, before, whole), _only(before, after, whole)
    return ProfileComparison(step, modules, added, gone, float(np.exp(pace)), least)


def _sure(before: Saved, after: Saved) -> float:
    """The least effect that such profiles can show."""
    rounds = min(len(before.rounds), len(after.rounds))
    seconds = max(min(sum(before.wall), sum(after.wall)), 0.1)
    return max(LEAST_EFFECT, ONE_ROUND / math.sqrt(rounds), ONE_SECOND / math.sqrt(seconds))


def _change(one: Any, other: Any, least: float, clocked: tuple[list[float], list[float]]) -> TimeChange:
    """The change between logarithms of quiet times, level by level.

    The first row is measured, the rest are draws.
    """
    drawn = np.exp((other - one).mean(axis=1))
    drawn = drawn[np.isfinite(drawn)]
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = (float(each) for each in np.percentile(drawn[1:], [tail, 100 - tail]))
    ratio = float(drawn[0])
    is_far = low > 1 or high < 1
    is_large = max(ratio, 1 / ratio) - 1 >= least
    before, after = (float(np.median(each)) for each in clocked)
    return TimeChange(ratio, low, high, bool(is_far and is_large), before, after)


class _Drawn:
    """The quiet times of a profile at the same pace: as measured, and from random draws of its rounds and
    steps.

    All are logarithms, [draw, level].
    """

    def __init__(self, saved: Saved, generator: np.random.Generator, *, has_pace: bool) -> None:
        parts = _parts(saved)
        ordered = sorted(parts, key=lambda part: -float(np.median(parts[part])))
        self._names = ordered[:PARTS]
        rest = [_levels(parts[part]) for part in ordered[PARTS:]]
        self._rest = np.sum(rest, axis=0) if rest else 0.0
        paces = [np.ones(1)] * len(saved.wall)
        if has_pace:
            paces = [np.asarray(each) for one in saved.rounds for each in one.pace]
        rows = np.stack([parts[part] for part in self._names])
        lengths = [len(one.wall) for one in saved.rounds]
        self._quiet, self._paces = _draw(rows, paces, lengths, generator)
        self.paths = {path for path, _ in self._names}
        self.pace = float(self._paces[0].mean())

    @property
    def whole(self) -> Any:
        drawn = self._quiet.sum(axis=1)
        return np.log(drawn * (1 + self._rest / drawn[0])) - self._paces

    def of(self, path: str) -> Any:
        at = [index for index, part in enumerate(self._names) if part[0] == path]
        return np.log(np.maximum(self._quiet[:, at].sum(axis=1), 1e-12)) - self._paces


def _parts(saved: Saved) -> dict[tuple[str, str], Any]:
    """The times of each module and direction that all rounds have, in all their steps."""
    found = {}
    for way in ("forward", "backward"):
        times = [getattr(one, way) for one in saved.rounds]
        for path in times[0]:
            if all(path in each for each in times):
                values = np.concatenate([np.asarray(each[path]) for each in times])
                if values.any():
                    found[path, way] = values
    return found or {("", "forward"): np.asarray(saved.wall)}


def _draw(rows: Any, paces: list[Any], lengths: list[int], generator: np.random.Generator) -> tuple[Any, Any]:
    """[draw, row, level] of the quiet times, [draw, level] of the logarithm of the pace in these steps.

    Draws rounds, and blocks of steps in them, each with the pace measured after it.
    """
    times = np.empty((1 + DRAWS, rows.shape[0], len(LEVELS)))
    pace = np.empty((1 + DRAWS, len(LEVELS)))
    begins = np.concatenate([[0], np.cumsum(lengths)])
    at = np.arange(rows.shape[1])
    for draw in range(1 + DRAWS):
        if draw:
            chosen = generator.integers(0, len(lengths), size=len(lengths))
            at = np.concatenate([begins[each] + _blocks(lengths[each], generator) for each in chosen])
        times[draw] = _levels(rows[:, at])
        drawn = np.concatenate([paces[step] for step in at])
        pace[draw] = _levels(drawn) if len(drawn) else np.nan
    return times, np.log(pace)


def _blocks(length: int, generator: np.random.Generator) -> Any:
    block = -(-length // BLOCKS)
    starts = generator.integers(0, length, size=(-(-length // block), 1))
    return ((starts + np.arange(block)) % length).reshape(-1)[:length]


def _levels(values: Any) -> Any:
    """The quantiles along the last axis, without interpolation. Ten times as quick as numpy's."""
    length = values.shape[-1]
    places = np.minimum((np.asarray(LEVELS) * length).astype(int), length - 1)
    return np.sort(values, axis=-1)[..., places]


def _only(saved: Saved, other: Saved, whole: float) -> dict[str, float]:
    """The modules that only this profile has, unless they are small, with their medians."""
    found = {path: float(np.median(saved.own(path))) for path in saved.paths if path not in other.paths}
    return {path: median for path, median in found.items() if median >= SHARE * whole}
