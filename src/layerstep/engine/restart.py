"""How a forward can begin again: what is thrown out of a stop, and who follows the calls meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from torch import nn

from layerstep.calls.events import Event, Phase

__all__ = ["Follower", "PassedCalls", "Restart"]


class Restart(BaseException):
    """Thrown out of a stop to leave the forward; whoever follows the forward calls it again.

    No `Exception`, because programs catch those. If one swallows it all the same, the follower finds out when
    the forward returns.
    """


class PassedCalls:
    """The modules that the run went past since it last stood still.

    Each call adds one, so that is an append; they are counted at a stop, and where the list grows long.
    """

    __slots__ = ("_entered", "_left", "entered", "left")

    MOST = 100_000

    def __init__(self) -> None:
        self.entered: list[nn.Module] = []
        self.left: list[nn.Module] = []
        self._entered: Counter[int] = Counter()
        self._left: Counter[int] = Counter()

    def count(self) -> None:
        """Keep numbers in place of the lists."""
        self._entered.update(map(id, self.entered))
        self._left.update(map(id, self.left))
        self.entered.clear()
        self.left.clear()

    def times(self, module: int, phase: Phase) -> int:
        """How often the module with this id was entered or left."""
        self.count()
        return (self._entered if phase is Phase.ENTER else self._left)[module]

    def clear(self) -> None:
        for each in (self.entered, self.left, self._entered, self._left):
            each.clear()


class Follower(Protocol):
    """Follows the calls of one forward, and may begin it again."""

    module: nn.Module
    is_over: bool
    """Has its function returned? The run is at the exit of its module then."""

    @property
    def is_silent(self) -> bool:
        """Does the forward run again, on its way to an earlier place? Then nothing else stops."""

    def arrives(self, event: Event) -> bool:
        """A tapped module is entered or left on the way to an earlier place: is it here?"""

    def run_again(self) -> Any:
        """The result of another run, at a stop after the forward's own end."""

    def turn_streams_back(self) -> bool:
        """Put the random streams where they were when the forward began; False if that was not kept."""
