from __future__ import annotations

from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "commands",
    group="stop",
    usage="N  … end   |   N LINE; LINE",
    examples=("commands 1 stats out; continue",),
    complete="point",
    block="end",
)
def commands(session: Session, rest: str) -> Notice:
    """Give a point lines that run whenever it stops.

    Either on lines of their own up to `end`, or behind the number with `;` between them. A line that
    resumes ends the list; `silent` as the first keeps the stop itself from being shown. An empty list
    takes them away.
    """
    head, _, body = rest.partition("\n")
    number, _, inline = head.partition(" ")
    if not number:
        raise BadArguments("commands needs a point")
    point = session.points.get(number)
    if body:
        lines = body.splitlines()
        if lines and lines[-1].strip() == "end":
            lines.pop()
    else:
        lines = inline.split(";")
    point.commands = tuple(line.strip() for line in lines if line.strip())
    if not point.commands:
        return Notice(f"point {point.number} runs no commands now")
    return Notice(f"at point {point.number}: {'; '.join(point.commands)}")
