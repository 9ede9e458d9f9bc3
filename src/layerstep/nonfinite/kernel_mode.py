"""A dispatch mode that sees the kernels of the run, and changes nothing by being there.

Not a function mode: any of those makes torch's attention layers leave their fused kernel, whose last digits
differ, and makes dynamo compile again.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import torch.nn.functional as F

from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.persistent_mode import PersistentMode
from layerstep.calls.operations import Around, name_of, user_frame

__all__ = ["KernelMode", "called_as"]

_FUNCTIONAL = F.softmax.__code__.co_filename


class KernelMode(PersistentMode):
    """Hands on each kernel, but for those in compiled code. Used in a `with`, or opened and closed."""

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around
        self._thread = threading.get_ident()
        self.is_open = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if self.is_open:
            return self._around(func, args, kwargs)
        try:
            return run_kernel(func, args, kwargs)
        finally:
            self.pop_after_handler(kwargs, sys._getframe(1))

    def open(self) -> bool:
        """Lie below all modes of this thread from now on; no where that may not be."""
        if self._thread != threading.get_ident():
            return False
        self.is_open = True
        return self.push_below()

    def close(self) -> None:
        """Do nothing from now on, and leave the stack at the first chance."""
        self.is_open = False
        if self._thread == threading.get_ident():
            self.pop()


def called_as(func: Any, frame: FrameType | None) -> str:
    """`F.cross_entropy` if the kernel runs in that function of the user's line; else its own name."""
    users = user_frame(frame)
    found = ""
    while frame is not None and frame is not users:
        if frame.f_code.co_filename == _FUNCTIONAL:
            found = f"F.{frame.f_code.co_name}"
        frame = frame.f_back
    return found or name_of(func).removeprefix("aten.").lstrip("_")
