"""The frames that threads are in, asked for without harm.

Up to Python 3.11 `sys._current_frames()` holds the lock under which threads begin and end, and makes objects.
A garbage collection that begins there runs code of the program: if that lets another thread run, and this one
begins or ends a thread, both wait for ever. So no collection begins meanwhile. The three calls run one after
the other in C: no other thread runs between them.
"""

from __future__ import annotations

import gc
import operator
import sys
from types import FrameType
from typing import Any

__all__ = ["frames_of_threads"]


def frames_of_threads() -> dict[int, FrameType]:
    """The frame that each thread is in, by its ident."""
    if sys.version_info >= (3, 12) or not gc.isenabled():  # since 3.12 a collection waits for the next line
        return sys._current_frames()
    calls: tuple[Any, ...] = (gc.disable, sys._current_frames, gc.enable)
    # no variable may hold the answer: our own frame is in it, and the cycle would keep the frames of all
    return tuple(map(operator.call, calls))[1]  # type: ignore[no-any-return]
