"""Words of pdb that layerstep has no command for: the answer is the reason, and what to do instead."""

from __future__ import annotations

from layerstep.arguments import Given, Rest
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command("jump", "j", group="run", args=Rest("LINE", optional=True), examples=("jump 12",))
def jump(session: Session, given: Given) -> Notice:
    """Refused: layerstep cannot skip lines.

    Tensors and autograd's graph would then be those of a run that the code does not describe. `until LINE`
    runs up to a line.
    """
    return Notice(
        "layerstep cannot jump: the tensors would not match any real run of this code",
        "`until LINE` runs up to a line",
        level="warn",
    )
