"""Forked children, such as DataLoader workers, must never prompt."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from layerstep.engine.threads import Turns

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["leave_forked_children"]


def leave_forked_children(session: Session) -> None:
    """Let a child let go of everything that it inherited."""
    reference = weakref.ref(session)

    def in_child() -> None:
        child = reference()
        if child is not None and child.is_attached:
            child.frontend = None
            child.turns = Turns(child)  # another thread, which is not here, may have had one
            child.detach()

    os.register_at_fork(after_in_child=in_child)
