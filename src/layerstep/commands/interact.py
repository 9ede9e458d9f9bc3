from __future__ import annotations

from layerstep.arguments import Given
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "interact",
    group="look",
    args=(),
    examples=("interact\n1 + 1\nexit()",),
    needs_pause=True,
    whole_word=True,
)
def interact(session: Session, given: Given) -> Notice:
    """Read every line as Python, until Ctrl-D or `exit()`.

    The names are the same as at the prompt, and no word is a command. Assignments stay at the prompt and do
    not change the program.
    """
    session.prompt.interacting = True
    return Notice("every line is Python now", "Ctrl-D or `exit()` comes back")
