from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command


@command("finish", "r", "return", group="run", args=(), examples=("finish",), repeats=True, needs_pause=True)
def finish(session: Session, given: Given) -> Resume:
    """Run until the enclosing module has finished.

    At the entry of a module, this is the module itself. At its exit, it is the module that called it. At a
    line of another function, the run stops when that function returns, and shows the value that it returns.
    """
    pause = session.run.pause
    assert pause is not None
    inner = pause.stack[0]
    if inner.at_line and inner.module is None and inner.within is not None:
        if inner.has_output:
            raise UserError(f"{inner.path} returns already", "`next line` goes on in its caller")
        if inner.within.f_code.co_name == "<module>":
            raise UserError("no function is running here", "`continue` runs on")
        return Resume(Kind.RETURN)
    if pause.phase is not None and pause.phase.is_end and pause.depth <= 1:
        name = pause.stack[0].path
        raise UserError(
            f"nothing encloses {name}", "`continue` runs on, `next` to the end of the next forward"
        )
    if pause.depth == 0:
        raise UserError("no module is running here", "`continue` runs on")
    return Resume(Kind.FINISH)
