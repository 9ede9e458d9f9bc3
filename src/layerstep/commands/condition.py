from __future__ import annotations

from layerstep.arguments import Expr, Given, Word
from layerstep.engine.session import Session
from layerstep.expressions.expression import Expression
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "condition",
    group="stop",
    args=(Word("N", what="a point", completes="point"), Expr("EXPR", optional=True)),
    examples=("condition 1 out.std() > 2",),
    at_once=True,
)
def condition(session: Session, given: Given) -> Notice:
    """Give a point a condition; without EXPR, remove it."""
    point = session.points.get(given.n)
    point.condition = Expression.parse(given.expr) if given.expr else None
    session.rearm()
    if point.condition is None:
        return Notice(f"point {point.number} has no condition now")
    return Notice(f"point {point.number} stops only if {point.condition.text}")
