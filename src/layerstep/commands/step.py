from __future__ import annotations

from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command

__all__ = ["count_of"]


def count_of(text: str) -> int:
    """The N of `step N`: a whole number from 1, 1 if it is left out."""
    if not text:
        return 1
    if not text.isdigit() or int(text) < 1:
        raise BadArguments(f"{text!r} is no count")
    return int(text)


@command("step", "s", group="run", usage="[N]", examples=("step", "step 3"), repeats=True)
def step(session: Session, rest: str) -> Resume:
    """Run until the next module has finished, at any depth.

    Each step computes one more module output. With N, that many of them. An empty line
    repeats it.
    """
    return Resume(Kind.STEP, count_of(rest))
