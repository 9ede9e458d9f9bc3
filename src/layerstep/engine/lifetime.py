"""Forked children, such as DataLoader workers, must never prompt."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import TYPE_CHECKING

from layerstep.engine.threads import Turns

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["leave_at_exit", "leave_forked_children"]


def leave_forked_children(session: Session) -> None:
    """Make a child release everything that it inherited."""
    reference = weakref.ref(session)

    def in_child() -> None:
        child = reference()
        if child is not None and child.run.is_attached:
            child.prompt.frontend = None
            child.turns = Turns(child)  # another thread may have held one, and it is not in the child
            child.detach()

    os.register_at_fork(after_in_child=in_child)


def leave_at_exit(session: Session) -> None:
    """Remove everything before the interpreter shuts down.

    A `__del__` may still call a model then. A mode or a tap of ours would run without its globals, and torch
    would abort the process.
    """
    reference = weakref.ref(session)

    def at_exit() -> None:
        ending = reference()
        if ending is not None and ending.run.is_attached:
            with contextlib.suppress(Exception):
                ending.detach()

    atexit.register(at_exit)
