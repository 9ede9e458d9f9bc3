from __future__ import annotations

from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice


@command("ignore", group="stop", usage="N COUNT", examples=("ignore 1 500",), complete="point")
def ignore(session: Session, rest: str) -> Notice:
    """Pass a point by COUNT times before it stops again.

    The condition is asked first; what does not fulfil it is not counted.
    """
    words = rest.split()
    if len(words) != 2 or not words[1].isdigit():
        raise BadArguments("ignore needs a point and a count")
    point = session.points.get(words[0])
    point.ignore = int(words[1])
    return Notice(f"point {point.number} is passed by {point.ignore} times")
