"""How much of a step the doctor may take, and what each step gets to stay within.

A level is a budget. The doctor measures its own time all the time. Where a look is dear, it looks at fewer
steps. Where a step is so short that even watching it is dear, the doctor watches some steps in a row and
rests in between.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from enum import Enum, StrEnum, auto

from layerstep.errors import UserError

__all__ = ["LOOKS_AT_FIRST", "Attention", "Budget", "Level"]

LOOKS_AT_FIRST = 10
"""The first steps are all looked at: most faults are there from the beginning."""
WATCHED_AT_FIRST = 500
"""The first steps are all watched, whatever it costs: 0.1 s at most where a step is short."""
IN_A_ROW = 20
"""Steps that are watched between two rests: rules compare a step with those right before it."""
LONGEST_REST = 5000
UNMEASURED, RESTING = 45e-6, 12e-6
"""Seconds that our hooks take in a watched step and in one at rest before a clock of ours runs: measured."""
GROWTH = 1.5
"""A step is looked at, whatever it costs, when the run is so many times as long as at the last look. Tiny
steps leave no room for looks, and what comes later would not be seen. 8 such looks come in 300 steps."""
LONGEST = 5000
"""At least one step in so many is looked at, whatever it costs."""


class Level(StrEnum):
    """How closely the doctor looks: the share of a step that it may take."""

    BASIC = "basic"
    ADVANCED = "advanced"
    EXTREME = "extreme"

    @classmethod
    def parse(cls, name: str) -> Level:
        """The level of that name; UserError if there is none."""
        if name not in list(cls):
            raise UserError(f"no level {name!r}", f"there are {', '.join(cls)}")
        return cls(name)

    @property
    def share(self) -> float:
        return {Level.BASIC: 0.02, Level.ADVANCED: 0.10, Level.EXTREME: 0.25}[self]


class Attention(Enum):
    """What a step gets."""

    LOOK = auto()
    WATCH = auto()
    REST = auto()
    """Nothing but being counted. Evaluations are seen all the same."""


class Budget:
    """Decides which steps are looked at, which are watched, and which are not."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.own = 0.0
        """Seconds that the doctor has taken."""
        self.run = 0.0
        """Seconds of the training steps, the doctor's own left out."""
        self.looks = 0
        self.steps = 0
        self.rest = 0
        """Steps of the rest that goes on, or of the last one."""
        self.beginning = (0, 0.0, 0.0)
        """The steps of the beginning, which may cost more, with the doctor's seconds and the run's."""
        self._look, self._always, self._step = _Typical(), _Typical(), _Typical()
        self._since = 0
        self._in_a_row = 0
        self._rests = 0
        self._is_resting = False

    @property
    def cost(self) -> float:
        """The share of the run's time that the doctor has taken so far."""
        return self.own / self.run if self.run else 0.0

    @property
    def step_seconds(self) -> float:
        """What a step takes on average, the doctor's own left out."""
        return self.run / self.steps if self.steps else 0.0

    @property
    def later_cost(self) -> float | None:
        """The same since the beginning is over; None as long as it is not."""
        _, own, run = self.beginning
        return (self.own - own) / (self.run - run) if run and self.run > run else None

    @property
    def every(self) -> int:
        """One step in so many is looked at."""
        room = max(self.level.share * self._step.value - self._always.value, self._room / 2)
        return min(max(1, math.ceil(self._look.value / room)), LONGEST) if room > 0 else LONGEST

    def words(self) -> str:
        """What the doctor costs, and how it keeps to its level."""
        often = "each step" if self.every == 1 else f"one step in {self.every:,}"
        rests = f", watches {IN_A_ROW} steps and rests for {self.rest:,} in turn" if self.rest else ""
        (first, own, _), later = self.beginning, self.later_cost
        began = f"took {own:.2g} s in the first {first} steps, since then " if later is not None else ""
        now = self.cost if later is None else later
        is_dear = later is not None and later > self.level.share and self.steps < WATCHED_AT_FIRST
        all_seen = f"; watches each of the first {WATCHED_AT_FIRST} steps" if is_dear else ""
        share = f"{now:.1%} of a step, may take {self.level.share:.0%}"
        return f"{began}takes {share}{all_seen}; looks at {often}{rests}"

    def next(self) -> Attention:
        """What the step that begins now gets."""
        if self._is_resting:
            return Attention.REST
        if self.looks < LOOKS_AT_FIRST or self._since + 1 >= self.every:
            return Attention.LOOK
        is_long_ago = self.steps + 1 >= GROWTH * (self.steps - self._since)
        return Attention.LOOK if is_long_ago else Attention.WATCH

    def stepped(self, seconds: float, own: float, *, was_look: bool) -> None:
        """A watched step has ended. `seconds` is its whole time, `own` what the doctor has measured."""
        own += UNMEASURED
        self._count(1, seconds, own)
        if was_look:
            self.looks += 1
            self._since = 0
            self._look.add(max(own - self._always.value, 0.0))
            if self.looks == LOOKS_AT_FIRST:
                self.beginning = (self.steps, self.own, self.run)
        else:
            self._always.add(own)
        self._in_a_row += 1
        if self.steps >= WATCHED_AT_FIRST and self._in_a_row >= IN_A_ROW:
            self._rest_if_dear()

    def rested(self, seconds: float) -> None:
        """A rest is over; `seconds` is the time of all its steps."""
        self._is_resting = False
        self._count(self.rest, seconds, RESTING * self.rest)

    def _count(self, steps: int, seconds: float, own: float) -> None:
        net = max(seconds - own, 0.0)
        self.steps += steps
        self._since += steps
        self.own += own
        self.run += net
        self._step.add(net / steps)

    def _rest_if_dear(self) -> None:
        """Watching may take half of what the level allows; the other half is for looks."""
        self._in_a_row = 0
        room = self._room / 2
        if self._always.value <= room:
            self.rest = 0
            return
        times = self._always.value / room if room > 0 else float(LONGEST_REST)
        if not self._rests:
            self.beginning = (self.steps, self.own, self.run)
        self._rests += 1
        self._is_resting = True
        uneven = 0.75 + 0.5 * (self._rests * 0.618 % 1)  # an even rhythm may be that of the epochs
        self.rest = min(max(round(IN_A_ROW * (times - 1) * uneven), 1), LONGEST_REST)

    @property
    def _room(self) -> float:
        """Seconds of a step that the doctor may take on average, besides what a step at rest costs."""
        whole = self.level.share * self._step.value
        return max(whole - RESTING, whole / 4)


class _Typical:
    """The median of the last times. One in which the machine did something else does not count."""

    def __init__(self) -> None:
        self.value = 0.0
        self._last: deque[float] = deque(maxlen=25)
        self._count = 0

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self._count += 1
        if self._count <= 25 or self._count % 5 == 0:
            self.value = statistics.median(self._last)
