from __future__ import annotations

from collections.abc import Iterable

from layerstep.arguments import Expr, Flag, Given
from layerstep.engine.messages import Watch
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.expression import Expression
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
    """Show an expression at every stop, or stop at its writes.

    With `--stop`, EXPR is a tensor: a parameter, a buffer, a gradient, `out`, or a part of one. The run stops
    at each op that writes to it: an optimizer, an in-place layer, a hook, `load_state_dict`, batch norm's
    running statistics. The stop shows the op, the line, and the values before and after. A write that leaves
    every value as it was is only counted. Torch does not see writes by numpy, another thread or compiled
    code. layerstep finds those at the next forward, training step or stop, and says so. Without EXPR, `watch`
    lists what is watched.
    """
    if not given.typed:
        return _listed(session)
    text = given.expr
    if not given.stop:
        expression = Expression.parse(text)
        number = session.points.next_number()
        session.prompt.watches[number] = Watch(expression)
        return Notice(f"watch {number}: {text}", level="good")
    if not text:
        raise BadArguments("which tensor?", "watch --stop head.weight")
    Expression.parse(as_expression(text))
    point = Watchpoint(text=text, budget=session.run.config.keep_bytes)
    hint = _settle(session, point)
    session.points.add(point)
    session.rearm()
    return Notice(f"{point.label}: stops where {point.name} is written", hint, level="good")


def _settle(session: Session, point: Watchpoint) -> str:
    """Find the tensor; before any model has run it may wait for one."""
    try:
        point.settle(find_home(session, point.text))
    except UserError as error:
        if len(session.run.models):
            raise
        point.trouble = error.message
        return "it waits for the first model"
    if point.steps:
        return "it is large: a part of its elements is compared (`config keep_bytes`)"
    return "" if session.run.is_attached else "it takes effect with the run"


def _listed(session: Session) -> Table:
    rows = [
        (str(number), each.expression.text, each.last or "")
        for number, each in session.prompt.watches.items()
    ]
    rows += [(str(point.number), f"{STOP} {point.text}", point.state) for point in _watchpoints(session)]
    note = "" if rows else "nothing is watched; `watch EXPR` begins"
    return Table((Column("no"), Column("expression", "code"), Column("last")), tuple(rows), note=note)


def _watchpoints(session: Session) -> list[Watchpoint]:
    return [point for point in session.points if isinstance(point, Watchpoint)]


def _numbers(session: Session) -> Iterable[str]:
    return map(str, (*session.prompt.watches, *(point.number for point in _watchpoints(session))))


@command(
    "unwatch",
    "undisplay",
    group="look",
    args=(Flag("stop", "names one of `watch --stop`"), Expr("N | EXPR", optional=True, completes=_numbers)),
    examples=("unwatch",),
)
def unwatch(session: Session, given: Given) -> Notice:
    """Stop watching an expression or a tensor, or all of them.

    A tensor of `watch --stop` is a point, so `delete N` removes it, too.
    """
    points, rest = _watchpoints(session), given.typed
    if not rest:
        count = len(session.prompt.watches) + len(points)
        session.prompt.watches.clear()
        _drop(session, points)
        return Notice(f"{count} dropped; nothing is watched now")
    for number, watch in session.prompt.watches.items():
        if rest in (str(number), watch.expression.text):
            del session.prompt.watches[number]
            return Notice(f"watch {number} dropped: {watch.expression.text}")
    found = [point for point in points if rest in (str(point.number), point.text, f"{STOP} {point.text}")]
    if not found:
        raise BadArguments(f"no watch {rest}", "`watch` lists them")
    _drop(session, found)
    return Notice(f"{found[0].label} dropped: {found[0].name}")


def _drop(session: Session, points: list[Watchpoint]) -> None:
    for point in points:
        session.points.delete(point)
    session.rearm()
