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

    Either on lines of their own up to `end`, or behind the number with `;` between them. A line that
    resumes ends the list; `silent` as the first keeps the stop itself from being shown. An empty list
    takes them away.
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
