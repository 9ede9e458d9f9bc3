"""The calls of `backward()`: listeners get each loss before its pass begins, and after it has ended.

`torch.autograd.backward`, which `loss.backward()` calls, is replaced by the same function with these looks
while something listens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from layerstep._torch import graph_task, modes_off
from layerstep._torch.tensors import is_tensor

__all__ = ["BackwardCalls"]

Listener = Callable[[list[Tensor], FrameType], Any]
"""Is given the losses and the frame that calls `backward`."""


class BackwardCalls:
    """Tells of the backward passes that the program begins.

    What raises in a listener is reported by `failed` and never reaches the program.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._replaced: Any = None
        """What ours stands for. It stays while other code has put its own on top of ours, and calls ours."""
        self.before: list[Listener] = []
        self.after: list[Listener] = []
        """Not called if the pass raises."""
        self.around: list[Listener] = []
        """Each returns a context manager for the pass. It must not raise itself."""
        self.nested: list[Listener] = []
        """Told of passes inside a pass, as in reentrant checkpointing. The others are not."""

    @property
    def _is_heard(self) -> bool:
        return bool(self.before or self.after or self.around or self.nested)

    def listen(self, listeners: list[Listener], mine: Listener, wanted: bool) -> None:
        """Be among those who are called, or not, whatever it was before."""
        if wanted and mine not in listeners:
            listeners.append(mine)
        elif not wanted and mine in listeners:
            listeners.remove(mine)
        self._install(wanted=self._is_heard)

    def stop(self) -> None:
        """Call no listener any more."""
        for listeners in (self.before, self.after, self.around, self.nested):
            listeners.clear()
        self._install(wanted=False)

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
        run = self._replaced  # a listener may detach
        if not self._is_heard:
            return run(tensors, *args, **kwargs)
        given = tensors if isinstance(tensors, tuple | list) else (tensors,)
        losses = [each for each in given if is_tensor(each)]  # or edges of the graph
        frame = sys._getframe(1)
        if graph_task() != -1:
            self._tell(self.nested, losses, frame)
            return run(tensors, *args, **kwargs)
        with contextlib.ExitStack() as around:
            for listener in list(self.around):
                around.enter_context(listener(losses, frame))
            self._tell(self.before, losses, frame)
            result = run(tensors, *args, **kwargs)
            self._tell(self.after, losses, frame)
        return result

    def _tell(self, listeners: list[Listener], losses: list[Tensor], frame: FrameType) -> None:
        try:
            with modes_off():
                for listener in list(listeners):
                    listener(losses, frame)
        except Exception as error:
            self._failed(error)
