"""The calls of `backward()`: who listens is told of each loss before its pass begins, and after it has ended.

`torch.autograd.backward`, which `loss.backward()` calls, is replaced by the same function with these two
looks while something listens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from layerstep._torch import graph_task, modes_off
from layerstep._torch.tensors import is_tensor

__all__ = ["BackwardCalls"]

Listener = Callable[[list[Tensor], FrameType], None]


class BackwardCalls:
    """Tells of the backward passes that the program begins; passes inside a pass are a part of it.

    What raises in a listener is reported by `failed` and never reaches the program.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._replaced: Any = None
        """What ours stands for. It is kept for good: other code may have put its own on top of ours."""
        self.before: list[Listener] = []
        self.after: list[Listener] = []

    def listen(self, listeners: list[Listener], mine: Listener, wanted: bool) -> None:
        """Be among those who are called, or not, whatever it was before."""
        if wanted and mine not in listeners:
            listeners.append(mine)
        elif not wanted and mine in listeners:
            listeners.remove(mine)
        self._install(wanted=bool(self.before or self.after))

    def _install(self, *, wanted: bool) -> None:
        is_ours = torch.autograd.backward == self._backward
        if wanted and not is_ours and self._replaced is None:
            self._replaced = torch.autograd.backward
            torch.autograd.backward = self._backward
        elif not wanted and is_ours:
            torch.autograd.backward = self._replaced
            self._replaced = None
        elif not wanted and self._replaced is not None:
            self._leave_the_chain()

    def _leave_the_chain(self) -> None:
        """Another of this class was put on top of ours: it stands for what ours stood for from now on."""
        above = getattr(torch.autograd.backward, "__self__", None)
        while isinstance(above, BackwardCalls):
            if above._replaced == self._backward:
                above._replaced, self._replaced = self._replaced, None
                return
            above = getattr(above._replaced, "__self__", None)

    def _backward(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for `torch.autograd.backward`."""
        if graph_task() != -1 or not (self.before or self.after):
            return self._replaced(tensors, *args, **kwargs)
        given = tensors if isinstance(tensors, tuple | list) else (tensors,)
        losses = [each for each in given if is_tensor(each)]  # or edges of the graph
        frame = sys._getframe(1)
        with self._safely():
            for listener in list(self.before):
                listener(losses, frame)
        result = self._replaced(tensors, *args, **kwargs)
        with self._safely():
            for listener in list(self.after):
                listener(losses, frame)
        return result

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            with modes_off():
                yield
        except Exception as error:
            self._failed(error)
