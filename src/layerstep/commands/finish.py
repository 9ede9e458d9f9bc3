from __future__ import annotations

from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command


@command("finish", "r", group="run", examples=("finish",), repeats=True, needs_pause=True)
def finish(session: Session, rest: str) -> Resume:
    """Run until the enclosing module has finished.

    After a module has finished that is the one that called it; at its entry it is the module itself.
    """
    pause = session.pause
    assert pause is not None
    if pause.phase is not None and pause.phase.is_end and pause.depth <= 1:
        name = pause.stack[0].path
        raise UserError(
            f"nothing encloses {name}", "`continue` runs on, `next` to the end of the next forward"
        )
    if pause.depth == 0:
        raise UserError("no module is running here", "`continue` runs on")
    return Resume(Kind.FINISH)
