from __future__ import annotations

from layerstep.engine.expression import Expression
from layerstep.engine.messages import Watch
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View


@command("watch", group="look", usage="[EXPR]", examples=("watch out.std()", "watch"), complete="expression")
def watch(session: Session, rest: str) -> View:
    """Show an expression at every stop, with its change.

    Without EXPR: list what is watched.
    """
    if not rest:
        rows = tuple((str(n), w.expression.text, w.last or "") for n, w in session.watches.items())
        note = "" if rows else "nothing is watched; `watch EXPR` begins"
        return Table((Column("no"), Column("expression", "code"), Column("last")), rows, note=note)
    number = max(session.watches, default=0) + 1
    session.watches[number] = Watch(Expression.parse(rest))
    return Notice(f"watch {number}: {rest}", level="good")


@command("unwatch", group="look", usage="[N]", examples=("unwatch",))
def unwatch(session: Session, rest: str) -> Notice:
    """Stop showing a watched expression, or all of them."""
    if not rest:
        count = len(session.watches)
        session.watches.clear()
        return Notice(f"{count} dropped; nothing is watched now")
    if not rest.isdigit() or int(rest) not in session.watches:
        raise BadArguments(f"no watch {rest}", "`watch` lists them")
    dropped = session.watches.pop(int(rest))
    return Notice(f"watch {rest} dropped: {dropped.expression.text}")
