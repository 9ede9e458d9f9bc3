"""Where `back` goes: seen from the boundary that the run stands at."""

from __future__ import annotations

from dataclasses import dataclass

from layerstep.calls.events import Phase
from layerstep.rewind.route import Boundary

__all__ = ["Goal"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Where to go back to: so many boundaries, to the last call of a module, or to the entry."""

    count: int = 0
    module: int = 0
    """The id of a module."""
    phase: Phase = Phase.EXIT
    name: str = ""
    """What the user calls it."""

    def number(self, boundaries: list[Boundary], here: int) -> int | None:
        """The number of that boundary, seen from the one that the run stands at; None if there is none."""
        if not self.module:
            return max(here - self.count, 0) if self.count else 0
        for phase in dict.fromkeys((self.phase, Phase.ENTER)):  # it may be running
            for number in range(min(here, len(boundaries)) - 1, -1, -1):
                if boundaries[number].key == (self.module, phase):
                    return number
        return None
