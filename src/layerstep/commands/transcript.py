from __future__ import annotations

import contextlib
import os
from pathlib import Path

from layerstep.arguments import File, Given
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "transcript",
    group="self",
    args=File(optional=True),
    examples=("transcript session.txt", "transcript"),
)
def transcript(session: Session, given: Given) -> Notice:
    """Write what is typed and shown to a file as well.

    It starts here. `transcript` without FILE ends it.
    """
    rest: str = given.file
    if not rest:
        before, session.prompt.transcript = session.prompt.transcript, None
        return Notice(f"{before} is complete" if before else "no transcript is being written")
    path = Path(os.path.expanduser(rest))
    try:
        with contextlib.closing(path.open("a", encoding="utf-8")):
            pass
    except OSError as error:
        raise UserError(f"cannot write {rest}", error.strerror or "") from None
    session.prompt.transcript = str(path)
    return Notice(f"writing to {rest}", level="good")
