from __future__ import annotations

from layerstep.arguments import Given, Number, Word
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "ignore",
    group="stop",
    args=(Word("N", what="a point", completes="point"), Number("COUNT", what="count")),
    examples=("ignore 1 500",),
    at_once=True,
)
def ignore(session: Session, given: Given) -> Notice:
    """Skip a point COUNT times before it stops again.

    The condition is checked first; hits that do not meet it do not count.
    """
    point = session.points.get(given.n)
    point.ignore = given.count
    return Notice(f"point {point.number} is passed by {point.ignore} times")
