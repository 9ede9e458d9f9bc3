"""In-place writes noted as they happen, while `catch exception` is set.

Autograd tells in the backward pass that a tensor it saved was written to since, but not where. A function
mode sees every call and compares the version counters of its tensors before and after it: whoever wrote is
found, whatever it is called. Nothing but numbers and names is kept.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from layerstep._torch.jit_tracing import off_in_traces, on_in_traces
from layerstep._torch.modes import DEFERRED_POP, DeferredPop, is_on_stack, pop_mode, push_below
from layerstep._torch.saved import key_of
from layerstep._torch.tensors import base_of, version_of
from layerstep.calls.operations import Place, is_question, name_of, place_of
from layerstep.tensors.containers import tensors_of

__all__ = ["Ledger", "Write"]

KEPT = 4096
"""How many writes are kept: several steps of a model of a hundred layers."""


class Write(NamedTuple):
    """An operation has written to a tensor."""

    op: str
    place: Place
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensor, and of the one that it is a view of."""
    dtype: str
    version: int
    """The count of writes afterwards; a view shares it with its base."""
    storage: int


class Ledger(TorchFunctionMode):
    """Notes who writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: deque[Write] = deque(maxlen=KEPT)
        self._is_wanted = False

    @property
    def is_on(self) -> bool:
        return self._is_wanted

    def start(self) -> None:
        """Begin to note in this thread."""
        if not self._is_wanted:
            self._is_wanted = push_below(self)
            off_in_traces(self)

    def stop(self) -> None:
        """Note no more; from another thread the mode cannot be taken away, but does nothing."""
        self._is_wanted = False
        on_in_traces(self)
        if is_on_stack(self):
            pop_mode(self)
        self.writes.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._is_wanted:
            try:
                return func(*args, **(kwargs or {}))
            finally:
                if kwargs is not None:
                    kwargs[DEFERRED_POP] = DeferredPop(partial(pop_mode, self))
        if is_question(func):
            return func(*args, **(kwargs or {}))
        before = [
            (tensor, version)
            for tensor in tensors_of((args, kwargs or {}), 3)
            if (version := version_of(tensor)) >= 0
        ]
        result = func(*args, **(kwargs or {}))
        for tensor, version in before:
            if (now := version_of(tensor)) > version:
                self._note(func, tensor, now)
        return result

    def _note(self, func: Any, tensor: torch.Tensor, version: int) -> None:
        base = base_of(tensor)
        shapes = (tuple(tensor.shape),) + ((tuple(base.shape),) if base is not None else ())
        dtype = str(tensor.dtype).removeprefix("torch.")
        place = place_of(sys._getframe(1))
        self.writes.append(Write(name_of(func), place, shapes, dtype, version, key_of(tensor) or id(tensor)))
