from __future__ import annotations

from layerstep.commands.step import count_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Table


@command("history", group="self", usage="[N]", examples=("history", "history 5"))
def history(session: Session, rest: str) -> Table:
    """Show the last N lines typed in this session.

    N is 20 if it is left out. Ctrl-R searches older sessions too.
    """
    count = count_of(rest) if rest else 20
    first = max(len(session.history) - count, 0)
    rows = tuple((str(i + 1), line) for i, line in enumerate(session.history[first:], start=first))
    return Table((Column("no", right=True), Column("line", "code")), rows)
