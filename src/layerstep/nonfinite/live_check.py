"""The check of every operation as it runs, for what a second run does not show again.

A dispatch mode is on while an outermost call runs, and while a backward does: in a block each, so that
nothing of it is left after an exception or Ctrl-C. The loss and the optimizer are not checked.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from layerstep._torch import modes_off
from layerstep._torch.forward_swap import swap_forward
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.modes import autograd_on
from layerstep.nonfinite.catch import NonfiniteCatch
from layerstep.nonfinite.in_forward import names_of, origin_of_link, with_operands
from layerstep.nonfinite.kernel_mode import KernelMode
from layerstep.nonfinite.kernel_trace import KernelTrace, Link, Reached
from layerstep.nonfinite.search import Search
from layerstep.views import Notice

__all__ = ["LiveCheck"]


class LiveCheck:
    """Watches the kernels of a training step."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._trail: KernelTrace | None = None
        self._catch: NonfiniteCatch | None = None

    @property
    def is_on(self) -> bool:
        return self._trail is not None

    def start(self, catch: NonfiniteCatch, root: nn.Module) -> None:
        """An outermost call begins, and is at its pre-hooks; the values of the last are forgotten."""
        self._catch = catch
        self._trail = KernelTrace(names=names_of(root), made=self._made)
        if not swap_forward(sys._getframe(1), root, self._watched):
            self.clear()
            self._search.session.say(Notice("this call cannot be checked op by op", level="warn"))

    def clear(self) -> None:
        self._trail = self._catch = None

    def backward(self) -> contextlib.AbstractContextManager[Any]:
        """For the time of a backward pass."""
        return KernelMode(self._around) if self._trail is not None else contextlib.nullcontext()

    def _watched(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward_with_checks(*args: Any, **kwargs: Any) -> Any:
            with KernelMode(self._around):
                return forward(*args, **kwargs)

        return forward_with_checks

    def _around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trail = self._trail
        if trail is None or self._search.session.run.is_silent:
            return run_kernel(func, args, kwargs)
        return trail.run(func, args, kwargs)

    def _made(self, link: Link, here: Reached) -> None:
        """A link of the trail: stop if it is a birth that is wanted."""
        search, catch, trail = self._search, self._catch, self._trail
        if catch is None or trail is None or link.intended or search.has_told:
            return
        if trail.chain(link)[-1] is not link or not catch.is_wanted(link.bad):
            return
        seen = f"{link.name} has made {link.bad}"
        origin = with_operands(origin_of_link(search.session, (link,), seen=seen, forward=0), here)
        search.note(origin)
        with modes_off(), autograd_on():
            stop = search.stop_in_call(catch.point, origin, here, None)
            if search.session.decision.meets(catch.point, stop.stack[0]) is not None:
                search.session.standstill.stop(stop)
