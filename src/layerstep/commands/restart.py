from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.resume import Resume
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.rewind.rewinding import go_back
from layerstep.rewind.running_forward import Goal


@command("restart", group="run", args=(), examples=("restart",), needs_pause=True)
def restart(session: Session, given: Given) -> Resume:
    """Begin this forward again, and stop at its entry.

    Everything that the forward has written is put back first, as `back` does it.
    """
    return go_back(session, Goal())
