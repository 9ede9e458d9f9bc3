"""How much of a step the doctor may take, and which steps it looks at to stay within.

A level is a budget. The doctor measures its own time all the time, and looks at fewer steps when a look is
dear.
"""

from __future__ import annotations

from enum import StrEnum

from layerstep.errors import UserError

__all__ = ["LOOKS_AT_FIRST", "Budget", "Level"]

LOOKS_AT_FIRST = 10
"""The first steps are all looked at: most faults are there from the beginning."""
GROWTH = 1.5
"""A step is looked at, whatever it costs, when the run is so many times as long as at the last look. Tiny
steps leave no room for looks, and what comes later would not be seen. 8 such looks come in 300 steps."""
LONGEST = 1000
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


class Budget:
    """Decides which steps are looked at."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.own = 0.0
        """Seconds that the doctor has taken."""
        self.run = 0.0
        """Seconds of the training steps, the doctor's own left out."""
        self.looks = 0
        self.steps = 0
        self._look = 0.0
        self._always = 0.0
        self._step = 0.0
        self._since = 0

    @property
    def cost(self) -> float:
        """The share of the run's time that the doctor has taken so far."""
        return self.own / self.run if self.run else 0.0

    @property
    def every(self) -> int:
        """One step in so many is looked at."""
        room = self.level.share * self._step - self._always
        if room <= 0:
            return LONGEST
        return min(max(1, round(self._look / room)), LONGEST)

    def wants_look(self) -> bool:
        """Is the step that begins now to be looked at?"""
        if self.looks < LOOKS_AT_FIRST or self._since + 1 >= self.every:
            return True
        return self.steps + 1 >= GROWTH * (self.steps - self._since)

    def stepped(self, seconds: float, own: float, *, was_look: bool) -> None:
        """A step has ended. `seconds` is its whole time, `own` what the doctor took of it."""
        self.steps += 1
        self.own += own
        self.run += max(seconds - own, 0.0)
        self._step = _mix(self._step, max(seconds - own, 0.0), self.steps)
        if was_look:
            self.looks += 1
            self._since = 0
            self._look = _mix(self._look, max(own - self._always, 0.0), self.looks)
        else:
            self._since += 1
            self._always = _mix(self._always, own, self.steps - self.looks)


def _mix(old: float, new: float, count: int) -> float:
    """A mean that forgets: the first values count as in a plain mean."""
    return old + (new - old) / min(max(count, 1), 20)
