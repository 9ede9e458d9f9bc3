from __future__ import annotations

from collections.abc import Iterable

from layerstep.commands.step import count_of
from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.source_lines.watcher import SourceLines


def _candidates(session: Session, rest: str) -> Iterable[str]:
    return [word for word in ("line",) if word.startswith(rest)]


@command(
    "next",
    "n",
    group="run",
    usage="[N] | line [N]",
    examples=("next", "next line"),
    complete=_candidates,
    repeats=True,
)
def next_(session: Session, rest: str) -> Resume:
    """Run until the next module at this depth has finished.

    At this depth or above, that is. Modules inside of it run without a stop, unless they have a point
    of their own.
    `next line` stops at the next line of the function that runs here, whatever that line calls, or in the
    function that called it. At a stop at a module it is the function that called the module.
    """
    word, _, more = rest.partition(" ")
    if word == "line":
        session.instruments.get(SourceLines).check_thread()
        return Resume(Kind.NEXT_LINE, count_of(more.strip()))
    return Resume(Kind.NEXT, count_of(rest))
