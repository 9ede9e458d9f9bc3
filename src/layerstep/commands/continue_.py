from __future__ import annotations

from layerstep.arguments import Given
from layerstep.commands.step import COUNT
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("continue", "c", group="run", args=COUNT, examples=("continue",), repeats=True)
def continue_(session: Session, given: Given) -> Resume:
    """Run until a point stops the run.

    With N, the point of this stop stops again only at its N-th hit from here.
    """
    if given.n > 1 and session.run.pause is not None and session.run.pause.point is not None:
        session.run.pause.point.ignore = given.n - 1
    return Resume(Kind.CONTINUE)
