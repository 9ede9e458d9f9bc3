"""A call that returns its input: run and dropped, or not run at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from layerstep._torch.forward_swap import swap_forward
from layerstep.calls.events import Event
from layerstep.edits.acting import Occasion, Reach
from layerstep.edits.exchange import floating_tensors
from layerstep.edits.values import replacing
from layerstep.errors import UserError

__all__ = ["dropping_result", "without_running"]


def _input(occasion: Occasion) -> Tensor:
    found = floating_tensors((occasion.event.args, occasion.event.kwargs), "inp")
    if not found:
        raise UserError(f"{occasion.place.path} is given no tensor of floating numbers")
    return found[0][1]


def dropping_result(reach: Reach) -> Callable[[Occasion], Event]:
    """At the exit: its input takes the place of its result."""

    def value(old: Tensor, occasion: Occasion) -> Tensor:
        given = _input(occasion)
        if given.shape != old.shape:
            raise UserError(
                f"{occasion.place.path} returns {list(old.shape)} and is given {list(given.shape)}: "
                "it cannot be skipped"
            )
        return given.clone()  # or else what is written to the result would be written to the input

    return replacing(value, reach=reach)


def without_running(occasion: Occasion) -> Event:
    """At the entry: this call runs nothing and returns its input."""

    def instead(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: _input(occasion).clone()

    if not swap_forward(sys._getframe(), occasion.event.module, instead):
        raise UserError(f"{occasion.place.path} cannot be kept from running here", "`skip` without --bare")
    return occasion.event._replace()
