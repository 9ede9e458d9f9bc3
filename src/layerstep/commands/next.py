from __future__ import annotations

from layerstep.commands.step import count_of
from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("next", "n", group="run", usage="[N]", examples=("next",), repeats=True)
def next_(session: Session, rest: str) -> Resume:
    """Run until the next module at this depth has finished.

    At this depth or above, that is. Modules inside of it run without a stop, unless they have a point
    of their own.
    """
    return Resume(Kind.NEXT, count_of(rest))
