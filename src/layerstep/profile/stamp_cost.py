"""The cost of a mark on this machine that it does not measure itself, found with modules that do nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from layerstep.profile import machine
from layerstep.profile.call_times import Cost
from layerstep.profile.timing import Clock, MarkKind, TimedCall
from layerstep.tensors.observing import observing

__all__ = ["calibrate"]

CALLS = 200
ROUNDS = 9


class _Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


def calibrate() -> Cost:
    """Measure for a few milliseconds. Takes the best of several rounds, because the machine may be busy."""
    with torch.inference_mode(False), observing():
        call = _beyond(_Nothing(), grad=False)
        node = _beyond(_Doubled(), grad=True)
    return Cost(call=call, node=max(0.0, node - call))


def _beyond(module: nn.Module, *, grad: bool) -> float:
    """How many nanoseconds longer a timed call takes than a bare one, beyond what the marks measure."""
    clock = Clock(lambda: False, _ignore)
    start = torch.zeros(1, requires_grad=grad)

    def run() -> None:
        x = start
        for _ in range(CALLS):
            x = module(x)
        if grad:
            x.sum().backward()
            start.grad = None

    with torch.set_grad_enabled(grad):
        bare = min(_seconds(run) for _ in range(ROUNDS))
        replacement = TimedCall(module, clock, 0)
        replacement.install()
        try:
            found = []
            for _ in range(ROUNDS):
                clock.clear()
                spent = _seconds(run)
                seen = sum(mark[2] - mark[1] for mark in clock.log if mark[0] != MarkKind.END)
                found.append(spent - seen)
        finally:
            replacement.remove()
            clock.clear()
    beyond: float = (min(found) - bare) / CALLS
    return max(0.0, beyond)


def _seconds(run: Callable[[], None]) -> int:
    begin = machine.clock()()
    run()
    return machine.clock()() - begin


def _ignore(error: Exception) -> None:
    raise error
