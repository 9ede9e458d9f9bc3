from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command


@command("detach", group="run", args=(), examples=("detach",))
def detach(session: Session, given: Given) -> Resume:
    """Remove the debugger and let the program go on.

    Ctrl-D at the prompt and the end of a pipe do the same.
    """
    if session.run.pause is None:
        raise UserError("nothing is paused", "a library user calls `.detach()`")
    return Resume(Kind.DETACH)
