"""What the parts of a search for a NaN or Inf ask of the search itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Protocol

from torch import nn

from layerstep.engine.points import Catch
from layerstep.engine.session import Session
from layerstep.engine.stop import Stop
from layerstep.nonfinite.catch import NonfiniteCatch
from layerstep.nonfinite.kernel_trace import Reached
from layerstep.nonfinite.origin import Origin
from layerstep.tensors.finite import Bad

__all__ = ["Search"]


class Search(Protocol):
    """Knows the catchpoints, keeps what was found and makes the stops."""

    session: Session

    @property
    def has_told(self) -> bool: ...

    @property
    def active(self) -> list[NonfiniteCatch]: ...

    def wants(self, side: str) -> bool: ...

    def parameters(self) -> list[tuple[str, nn.Parameter]]: ...

    def note(self, origin: Origin) -> None: ...

    def tell(
        self, origin: Origin, bad: Bad, *, frame: FrameType, side: str, about: Sequence[str] = ()
    ) -> None: ...

    def stop_in_call(
        self, point: Catch, origin: Origin, here: Reached, boundary: FrameType | None
    ) -> Stop: ...
