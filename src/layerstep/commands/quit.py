from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("quit", "q", "exit", group="run", args=(), examples=("quit",))
def quit_(session: Session, given: Given) -> Resume:
    """End the program, with exit code 130.

    `finally` blocks run; `except Exception` does not catch it. `detach` lets the program go on instead.
    """
    return Resume(Kind.QUIT)
