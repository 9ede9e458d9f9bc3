"""How a forward can begin again: what is thrown out of a stop, and who follows the calls meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from layerstep.calls.events import Event

__all__ = ["Follower", "PassedCalls", "Restart"]


class Restart(BaseException):
    """Thrown out of a stop to leave the forward; whoever follows the forward calls it again.

    No `Exception`, because programs catch those. If one swallows it all the same, the follower finds out when
    the forward returns.
    """


@dataclass(frozen=True, slots=True)
class PassedCalls:
    """How often the run went past each module since it last stood still, by the ids of the modules."""

    entered: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        self.entered.clear()
        self.left.clear()


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
