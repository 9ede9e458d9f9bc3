from __future__ import annotations

from layerstep.arguments import Form, Given
from layerstep.commands.step import COUNT
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command(
    "next",
    "n",
    group="run",
    args=(COUNT, Form("line", COUNT)),
    examples=("next", "next line"),
    repeats=True,
)
def next_(session: Session, given: Given) -> Resume:
    """Run until the next module at this depth has finished.

    The run stops at this depth or above. Deeper modules run without a stop, unless a point is set there.
    `next line` stops at the next line of the function that runs here, or of the function that called it. It
    does not enter functions that the line calls. At a stop at a module, it goes on in the function that
    called the module.
    """
    if given.form == "line":
        return Resume(Kind.NEXT_LINE, given.n)
    return Resume(Kind.NEXT, given.n)
