from __future__ import annotations

from layerstep.commands.step import count_of
from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("continue", "c", group="run", usage="[N]", examples=("continue",), repeats=True)
def continue_(session: Session, rest: str) -> Resume:
    """Run until a point stops the run.

    With N, pass by the point that stopped here N - 1 times first.
    """
    count = count_of(rest)
    if session.pause is not None and session.pause.point is not None:
        session.pause.point.ignore = count - 1
    return Resume(Kind.CONTINUE)
