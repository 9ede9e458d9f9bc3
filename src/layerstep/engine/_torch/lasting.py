"""Dispatch modes that stay on beyond any block of a program that knows nothing of them; on torch 2.13.0."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from layerstep.engine._torch.dynamo import blocks_around, is_key_on, keep_dynamo_out
from layerstep.engine._torch.modes import LEAVING, Leaving, lay_below, lies_below, take_out

__all__ = ["LastingMode"]


class LastingMode(TorchDispatchMode):
    """Lies below all other modes of a thread, and leaves where that may be.

    `inference_mode` and compiled code put the dispatch keys back that they found. A mode that was laid before
    such a block and leaves inside of it would leave a key without a mode, at which torch asserts in the next
    operation: the run would die of us. So it stays, does nothing, and leaves after the block.
    """

    supports_higher_order_operators = True  # else `flex_attention` and `cond` raise under it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._laid: dict[int, tuple[bool, int]] = {}
        """By thread: the blocks around the place where it was laid."""

    def lay(self) -> None:
        """Lie below all others in this thread; where a block's end has switched it off, again."""
        if lies_below(self):
            if is_key_on():
                return
            take_out(self)
        lay_below(self)
        self._laid[threading.get_ident()] = blocks_around(sys._getframe(1))

    def leave(self) -> None:
        """Out of this thread's stack at once, if that may be."""
        if self._may_leave(sys._getframe(1)):
            take_out(self)

    def leave_after(self, kwargs: dict[str, Any]) -> None:
        """From inside of its handler: out of the stack when torch has put it back there, if that may be."""
        if self._may_leave(sys._getframe(2)):
            kwargs[LEAVING] = Leaving(partial(take_out, self))

    def _may_leave(self, frame: FrameType | None) -> bool:
        inference, compiled = self._laid.get(threading.get_ident(), (False, 0))
        in_inference, in_compiled = blocks_around(frame)
        return in_inference <= inference and in_compiled <= compiled

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:  # otherwise compiled code would run eagerly, on our account
        return True


keep_dynamo_out(LastingMode.leave_after, callees=True)
