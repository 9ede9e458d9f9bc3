"""What a catchpoint asks of a module that has finished: another shape, another dtype, no gradient, too slow.

Each is made by a function of the argument that the user gave, and answers with a line or with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from layerstep.calls.events import Event, Phase
from layerstep.engine.stop import Caught
from layerstep.errors import BadArguments
from layerstep.module_paths.by_module import ByModule
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.shapes import shape_of

__all__ = ["CHECKS", "Check"]

Check = Callable[[Event], Caught | None]
_AT_EXIT = (Phase.EXIT,)


class _Changed:
    """Remembers what was seen first of each module, and says when it is something else."""

    def __init__(self, look: Callable[[torch.Tensor], Any], word: str) -> None:
        self._look = look
        self._word = word
        self._first: ByModule[list[Any]] = ByModule()

    def __call__(self, event: Event) -> Caught | None:
        now = [self._look(tensor) for tensor in tensors_of(event.output)]
        first = self._first.get(event.module)
        if now == first:
            return None
        self._first.put(event.module, now)
        if first is None:
            return None
        return Caught(f"{self._word} {_listed(now)}; it was {_listed(first)}")


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values[:4])) + (", …" if len(values) > 4 else "") or "no tensor"


def _no_gradient(event: Event) -> Caught | None:
    """The output of a module with trainable weights needs no gradient, though gradients are on."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return None
    values = [each for each in tensors_of(event.output) if each.is_floating_point()]
    if not values or any(value.requires_grad for value in values):
        return None
    own = any(parameter.requires_grad for parameter in event.module.parameters())
    came = any(value.requires_grad for value in tensors_of((event.args, event.kwargs)))
    if not (own or came):
        return None
    source = "its weights are trainable" if own else "its input needs one"
    return Caught(f"the output needs no gradient, though {source}: it was detached inside")


class _Slow:
    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._began: dict[int, list[float]] = {}

    def __call__(self, event: Event) -> Caught | None:
        key = id(event.module)
        if event.phase is Phase.ENTER:
            self._began.setdefault(key, []).append(time.perf_counter())
            return None
        began = self._began.get(key)
        if not began:
            return None
        took = (time.perf_counter() - began.pop()) * 1e3
        if took <= self._limit:
            return None
        return Caught(f"it took {took:,.1f} ms, over {self._limit:g} ms")


def _slow(argument: str) -> tuple[Check, tuple[Phase, ...]]:
    try:
        limit = float(argument.removesuffix("ms"))
    except ValueError:
        raise BadArguments(f"slow needs milliseconds, not {argument!r}", "catch slow 50") from None
    return _Slow(limit), (Phase.ENTER, Phase.EXIT)


CHECKS: dict[str, Callable[[str], tuple[Check, tuple[Phase, ...]]]] = {
    "shape": lambda _: (_Changed(lambda t: list(shape_of(t)), "the shape is"), _AT_EXIT),
    "dtype": lambda _: (_Changed(lambda t: str(t.dtype).removeprefix("torch."), "the dtype is"), _AT_EXIT),
    "nograd": lambda _: (_no_gradient, _AT_EXIT),
    "slow": _slow,
}
