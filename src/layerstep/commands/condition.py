from __future__ import annotations

from layerstep.engine.expression import Expression
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "condition", group="stop", usage="N [EXPR]", examples=("condition 1 out.std() > 2",), complete="point"
)
def condition(session: Session, rest: str) -> Notice:
    """Give a point a condition, or without EXPR take it away."""
    number, _, text = rest.partition(" ")
    point = session.points.get(number)
    point.condition = Expression.parse(text) if text.strip() else None
    session.rearm()
    if point.condition is None:
        return Notice(f"point {point.number} has no condition now")
    return Notice(f"point {point.number} stops only if {point.condition.text}")
