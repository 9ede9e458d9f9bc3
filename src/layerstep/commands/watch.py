from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layerstep.arguments import Expr, Flag, Given
from layerstep.engine.expression import Expression
from layerstep.engine.messages import Watch
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View
from layerstep.watchpoints.tensor_locator import as_expression, find_home
from layerstep.watchpoints.watchpoint import Watchpoint

STOP = "--stop"


@command(
    "watch",
    "display",
    group="look",
    args=(Flag("stop"), Expr("EXPR", optional=True)),
    examples=("watch out.std()", "watch", "watch --stop head.weight", "watch --stop out"),
)
def watch(session: Session, given: Given) -> View:
    """Show an expression at every stop; --stop: who writes it.

    With --stop EXPR is a tensor (a parameter, a buffer, a gradient, `out`, a part of one), and the run stops
    at the op and the line that write it, with the values before and after: an optimizer, an in-place layer, a
    hook, `load_state_dict`, batch norm's running statistics. A write that leaves every value as it was is
    only counted. What torch does not see (numpy, another thread, compiled code) is found at the next forward,
    training step or stop, and said to be so. Without EXPR: list what is watched.
    """
    if not given.typed:
        return _listed(session)
    number = max(session.watches, default=0) + 1
    text = given.expr
    if not given.stop:
        session.watches[number] = Watch(Expression.parse(text))
        return Notice(f"watch {number}: {text}", level="good")
    if not text:
        raise BadArguments("which tensor?", "watch --stop head.weight")
    point = Watchpoint(text, budget=session.config.keep_bytes)
    point.number = number
    expression = Expression.parse(as_expression(text))
    hint = _settle(session, point)
    session.watches[number] = Watch(replace(expression, text=f"{STOP} {text}"), point=point)
    session.rearm()
    return Notice(f"watch {number}: stops where {point.label} is written", hint, level="good")


def _settle(session: Session, point: Watchpoint) -> str:
    """Find the tensor; before any model has run it may wait for one."""
    try:
        point.settle(find_home(session, point.text))
    except UserError as error:
        if len(session.models):
            raise
        point.trouble = f"pending: {error.message}"
        return "it waits for the first model"
    if point.steps:
        return "it is large: a part of its elements is compared (`config keep_bytes`)"
    return "" if session.is_attached else "it takes effect with the run"


def _listed(session: Session) -> Table:
    rows = []
    for number, each in session.watches.items():
        if each.point is not None:
            rows.append((str(number), each.expression.text, each.point.state))
        else:
            rows.append((str(number), each.expression.text, each.last or ""))
    note = "" if rows else "nothing is watched; `watch EXPR` begins"
    return Table((Column("no"), Column("expression", "code"), Column("last")), tuple(rows), note=note)


def _numbers(session: Session) -> Iterable[str]:
    return map(str, session.watches)


@command(
    "unwatch",
    "undisplay",
    group="look",
    args=(Flag("stop", "names one of `watch --stop`"), Expr("N | EXPR", optional=True, completes=_numbers)),
    examples=("unwatch",),
)
def unwatch(session: Session, given: Given) -> Notice:
    """Stop watching an expression, or all of them."""
    rest = given.typed
    if not rest:
        count = len(session.watches)
        session.watches.clear()
        session.rearm()
        return Notice(f"{count} dropped; nothing is watched now")
    same = [str(n) for n, watch in session.watches.items() if watch.expression.text == rest]
    rest = same[0] if same else rest
    if not rest.isdigit() or int(rest) not in session.watches:
        raise BadArguments(f"no watch {rest}", "`watch` lists them")
    dropped = session.watches.pop(int(rest))
    session.rearm()
    text = dropped.point.label if dropped.point is not None else dropped.expression.text
    return Notice(f"watch {rest} dropped: {text}")
