"""The check of every operation as it runs, for what a second run does not show again.

A dispatch mode is on while an outermost call runs, and while a backward does: in a block each, so that
nothing of it is left after an exception or Ctrl-C. The loss and the optimizer are not checked.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import modes_off
from layerstep._torch.forward_swap import swap_forward
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.modes import autograd_on
from layerstep.nonfinite.catch import Quarry
from layerstep.nonfinite.in_forward import names_of, origin_of_link, with_operands
from layerstep.nonfinite.kernel_mode import Beside
from layerstep.nonfinite.kernel_trace import Link, Reached, Trail
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.nonfinite.catching import Hunt

__all__ = ["EveryOp"]


class EveryOp:
    """Watches the kernels of a training step."""

    def __init__(self, hunt: Hunt) -> None:
        self._hunt = hunt
        self._trail: Trail | None = None
        self._quarry: Quarry | None = None

    @property
    def is_on(self) -> bool:
        return self._trail is not None

    def start(self, quarry: Quarry, root: nn.Module) -> None:
        """An outermost call begins, and is at its pre-hooks; the values of the last are forgotten."""
        self._quarry = quarry
        self._trail = Trail(names=names_of(root), made=self._made)
        if not swap_forward(sys._getframe(1), root, self._watched):
            self.clear()
            self._hunt.session.say(Notice("this call cannot be checked op by op", level="warn"))

    def clear(self) -> None:
        self._trail = self._quarry = None

    def backward(self) -> contextlib.AbstractContextManager[Any]:
        """For the time of a backward pass."""
        return Beside(self._around) if self._trail is not None else contextlib.nullcontext()

    def _watched(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward_with_checks(*args: Any, **kwargs: Any) -> Any:
            with Beside(self._around):
                return forward(*args, **kwargs)

        return forward_with_checks

    def _around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trail = self._trail
        if trail is None or self._hunt.session.is_silent:
            return run_kernel(func, args, kwargs)
        return trail.run(func, args, kwargs)

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
        with modes_off(), autograd_on():
            stop = hunt.stop_in_call(quarry.point, origin, here, None)
            if hunt.session.decision.meets(quarry.point, stop.stack[0]) is not None:
                hunt.session.stop(stop)
