from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.resume import Resume
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.rewind.goal import Goal
from layerstep.rewind.rewinding import go_back
from layerstep.views import Notice


@command("restart", group="run", args=(), examples=("restart",), whole_word=True)
def restart(session: Session, given: Given) -> Resume | Notice:
    """Begin this forward again, and stop at its entry.

    Everything that the forward has written is put back first, as `back` does it. The program itself cannot
    begin again: `save FILE` keeps the points, and after `quit`, `layerstep run -x FILE …` sets them in a new
    run.
    """
    pause = session.run.pause
    if pause is None or not any(frame.module is not None for frame in pause.stack):
        return Notice(
            "`restart` begins a forward again, and none runs here; it cannot start the program again",
            "`save FILE`, `quit`, then `layerstep run -x FILE …` sets the same points",
            level="warn",
        )
    return go_back(session, Goal())
