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

    It stops at this depth or above. Modules in it run without a stop, unless they have a point
    of their own.
    `next line` stops at the next line of the function that runs here, whatever that line calls, or in the
    function that called it. At a stop at a module it is the function that called the module.
    """
    if given.form == "line":
        return Resume(Kind.NEXT_LINE, given.n)
    return Resume(Kind.NEXT, given.n)
