from __future__ import annotations

from collections.abc import Iterable

from layerstep.commands.step import step_ops
from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command


def _candidates(session: Session, rest: str) -> Iterable[str]:
    return [word for word in ("op",) if word.startswith(rest)]


@command("into", group="run", usage="[op]", examples=("into", "into op"), complete=_candidates, repeats=True)
def into(session: Session, rest: str) -> Resume:
    """Run until the next module is entered.

    Its inputs are at hand, its output is not computed yet; `finish` runs to its end. In the backward
    pass: until the next module is entered there, or the next autograd node of this one is about to run.
    `into op` is `step op`.
    """
    if rest == "op":
        return step_ops(session, Kind.OP, "")
    if rest:
        raise BadArguments(f"{rest!r} is too much")
    return Resume(Kind.INTO)
