"""A dispatch mode beside the run, which changes nothing by being there.

Not a function mode: any of those makes torch's attention layers leave their fused kernel, whose last digits
differ, and makes dynamo compile again. A dispatch mode is on by a dispatch key, though, and `inference_mode`
and compiled code put the keys back that they found: one that was laid before such a block must not be taken
out inside of it (torch asserts).
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep.engine._torch.modes import LEAVING, Leaving, lay_below, take_out
from layerstep.engine.opframe import blocks
from layerstep.engine.ops import Around, name_of, user_frame

__all__ = ["Beside", "called_as"]

_FUNCTIONAL = F.softmax.__code__.co_filename


class Beside(TorchDispatchMode):
    """Hands on each kernel, but for those inside of compiled code. Used in a `with`, or opened and closed."""

    supports_higher_order_operators = True

    def __init__(self, around: Around) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._around = around
        self._thread = threading.get_ident()
        self._is_laid = False
        self.is_open = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if self.is_open:
            return self._around(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            if self._is_laid:
                kwargs[LEAVING] = Leaving(
                    self.leave_closed
                )  # let go of after torch has put the mode back on its stack

    def open(self) -> bool:
        """Lie below all modes of this thread from now on, beyond any block; no where that is not safe."""
        if self._thread != threading.get_ident() or (not self._is_laid and not _is_safe()):
            return False
        self.is_open = True
        self._is_laid = self._is_laid or lay_below(self)
        return self._is_laid

    def close(self) -> None:
        """Do nothing from now on, and leave the stack at the first chance."""
        self.is_open = False
        self.leave()

    def leave_closed(self) -> None:
        if not self.is_open:
            self.leave()

    def leave(self) -> None:
        if self._is_laid and self._thread == threading.get_ident() and _is_safe() and take_out(self):
            self._is_laid = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def _is_safe() -> bool:
    return blocks(sys._getframe()) == (False, 0)


def called_as(func: Any, frame: FrameType | None) -> str:
    """`F.cross_entropy` if the kernel runs in that function of the user's line; else its own name."""
    users = user_frame(frame)
    found = ""
    while frame is not None and frame is not users:
        if frame.f_code.co_filename == _FUNCTIONAL:
            found = f"F.{frame.f_code.co_name}"
        frame = frame.f_back
    return found or name_of(func).removeprefix("aten.").lstrip("_")
