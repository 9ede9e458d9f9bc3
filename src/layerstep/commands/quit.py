from __future__ import annotations

from layerstep.engine.events import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("quit", "q", "exit", group="run", examples=("quit",))
def quit_(session: Session, rest: str) -> Resume:
    """End the program, with exit code 130.

    `finally` blocks run; `except Exception` does not hold it up. `detach` lets the program go on instead.
    """
    return Resume(Kind.QUIT)
