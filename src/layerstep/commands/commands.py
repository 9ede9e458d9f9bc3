from __future__ import annotations

from layerstep.arguments import Given, Rest, Word
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "commands",
    group="stop",
    args=(Word("N", what="a point", completes="point"), Rest("LINE; LINE …", optional=True, name="lines")),
    examples=("commands 1 stats out; continue",),
    block="end",
    at_once=True,
)
def commands(session: Session, given: Given) -> Notice:
    """Give a point lines that run whenever it stops.

    Type the lines one by one and then `end`, or all in one line after the number, with `;` between them. A
    line that resumes the run ends the list. If the first line is `silent`, the stop itself is not shown. An
    empty list removes the lines.
    """
    point = session.points.get(given.n)
    if "\n" in given.typed:
        lines = given.typed.splitlines()[1:]
        if lines and lines[-1].strip() == "end":
            lines.pop()
    else:
        lines = given.lines.split(";")
    point.commands = tuple(line.strip() for line in lines if line.strip())
    if not point.commands:
        return Notice(f"point {point.number} runs no commands now")
    return Notice(f"at point {point.number}: {'; '.join(point.commands)}")
