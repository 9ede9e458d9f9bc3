from __future__ import annotations

from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("into", group="run", examples=("into",), repeats=True)
def into(session: Session, rest: str) -> Resume:
    """Run until the next module is entered.

    Its inputs are at hand, its output is not computed yet; `finish` runs to its end. In the backward
    pass: until the next module is entered there, or the next autograd node of this one is about to run.
    """
    return Resume(Kind.INTO)
