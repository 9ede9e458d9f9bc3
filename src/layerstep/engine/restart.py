"""How a forward can begin again: what is thrown out of a stop, and who follows the calls meanwhile."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from layerstep.calls.events import Event, Phase

__all__ = ["Follower", "Restart"]


class Restart(BaseException):
    """Thrown out of a stop to leave the forward; whoever follows the forward calls it again.

    No `Exception`, because programs catch those. If one swallows it all the same, the follower finds out when
    the forward returns.
    """


class Follower(Protocol):
    """Follows the calls of one forward, and may begin it again."""

    module: nn.Module
    is_over: bool
    """Has its function returned? The run is at the exit of its module then."""

    @property
    def is_silent(self) -> bool:
        """Does the forward run again, on its way to an earlier place? Then nothing else stops."""

    def passes(self, phase: Phase, module: nn.Module) -> None:
        """A tapped module is entered or left, and the run goes on as ever."""

    def arrives(self, event: Event) -> bool:
        """The same on the way to an earlier place: is it here?"""

    def run_again(self) -> Any:
        """The result of another run, at a stop after the forward's own end."""
