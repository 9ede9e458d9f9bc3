"""When a session ends by itself: in forked children, such as DataLoader workers, and at the end of Python."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable

from layerstep.process.forks import keeps_session

__all__ = ["call_at_exit", "call_in_forked_children"]


def call_in_forked_children(method: Callable[[], None]) -> None:
    """Call a method in each child that is forked, as long as its object lives: a child must never prompt.

    Checkpoints are left out: the run may go on in one of them, with its prompt.
    """
    reference = weakref.WeakMethod(method)

    def in_child() -> None:
        if not keeps_session() and (alive := reference()) is not None:
            alive()

    os.register_at_fork(after_in_child=in_child)


def call_at_exit(method: Callable[[], None]) -> None:
    """Call a method before the interpreter shuts down, as long as its object lives.

    A `__del__` may still call a model then. A mode or a tap of ours would run without its globals, and torch
    would abort the process.
    """
    reference = weakref.WeakMethod(method)

    def at_exit() -> None:
        if (alive := reference()) is not None:
            with contextlib.suppress(Exception):
                alive()

    atexit.register(at_exit)
