"""The check of every operation as it runs, for what a second run does not show again.

One function mode lies below all others of the thread; each function runs inside of a dispatch mode, so that
nothing stays on the stack of those. It sees the loss, the backward and the optimizer as well.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep.engine._torch import modes_off
from layerstep.engine._torch.modes import autograd_on, lay_below, take_out
from layerstep.engine.hunt.forwards import names_of, origin_of_link, with_operands
from layerstep.engine.hunt.quarry import Quarry
from layerstep.engine.hunt.trail import Link, Reached, Trail
from layerstep.engine.ops import Functions

if TYPE_CHECKING:
    from layerstep.engine.hunt.hunt import Hunt

__all__ = ["EveryOp"]


class EveryOp:
    """Watches the thread that runs the model."""

    def __init__(self, hunt: Hunt) -> None:
        self._hunt = hunt
        self._mode: Functions | None = None
        self._trail: Trail | None = None
        self._quarry: Quarry | None = None
        self._thread = 0
        self._is_inside = False

    @property
    def is_on(self) -> bool:
        return self._mode is not None

    def start(self, quarry: Quarry, root: nn.Module) -> None:
        """Begin with a forward; the values of the last are forgotten."""
        self._quarry = quarry
        self._trail = Trail(names=names_of(root), made=self._made)
        if self._mode is None:
            mode = Functions(self._around)
            if lay_below(mode):
                self._mode, self._thread = mode, threading.get_ident()

    def clear(self) -> None:
        self._trail = self._quarry = None
        if self._mode is not None and take_out(self._mode):
            self._mode = None

    def _around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trail = self._trail
        if trail is None or self._is_inside or self._hunt.session.is_silent:
            return func(*args, **kwargs)
        self._is_inside = True
        try:
            with trail.kernels:
                return trail.call(func, args, kwargs)
        finally:
            self._is_inside = False

    def _made(self, link: Link, here: Reached) -> None:
        """A link of the trail: stop if it is a birth that is wanted."""
        hunt, quarry, trail = self._hunt, self._quarry, self._trail
        if quarry is None or trail is None or link.intended or hunt.has_told:
            return
        if trail.chain(link)[-1] is not link or not quarry.is_wanted(link.bad):
            return
        seen = f"{link.name} has made {link.bad}"
        origin = with_operands(origin_of_link(hunt.session, (link,), seen=seen, forward=0), here)
        hunt.note(origin)
        if quarry.counts():
            with modes_off(), autograd_on():
                hunt.stop_in_call(quarry, origin, here, None)
