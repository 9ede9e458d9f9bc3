from __future__ import annotations

from layerstep.arguments import Form, Given
from layerstep.commands.step import step_ops
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("into", group="run", args=(Form(""), Form("op")), examples=("into", "into op"), repeats=True)
def into(session: Session, given: Given) -> Resume:
    """Run until the next module is entered.

    You can look at its inputs; its output is not computed yet. `finish` runs to its end. In the backward
    pass, the run stops when the next module is entered there, or when the next autograd node of this one is
    about to run.
    `into op` is `step op`.
    """
    if given.form == "op":
        return step_ops(session, Kind.OP, 1)
    return Resume(Kind.INTO)
