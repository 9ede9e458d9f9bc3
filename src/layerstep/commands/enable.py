from __future__ import annotations

from layerstep.engine.points import Point
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice

__all__ = ["points_named"]


def points_named(session: Session, rest: str) -> list[Point]:
    """The points of `1 3 5-7`; all of them if nothing is named."""
    named: list[Point] = []
    for word in rest.replace(",", " ").split():
        first, dash, last = word.partition("-")
        if dash and first.isdigit() and last.isdigit():
            named += [point for point in session.points.shown if int(first) <= point.number <= int(last)]
        else:
            named.append(session.points.get(word))
    if rest.strip():
        return named
    if not session.points.shown:
        raise BadArguments("there are no points", "`break WHERE` sets one")
    return session.points.shown


def _switch(session: Session, rest: str, *, on: bool) -> Notice:
    points = points_named(session, rest)
    for point in points:
        point.enabled = on
    session.rearm()
    numbers = ", ".join(str(point.number) for point in points)
    return Notice(f"{'enabled' if on else 'disabled'} {numbers}")


@command("enable", group="stop", usage="[N …]", examples=("enable 1", "enable"), complete="point")
def enable(session: Session, rest: str) -> Notice:
    """Switch points on: those named (`1 3 5-7`), or all."""
    return _switch(session, rest, on=True)


@command("disable", group="stop", usage="[N …]", examples=("disable 1",), complete="point")
def disable(session: Session, rest: str) -> Notice:
    """Switch points off: those named (`1 3 5-7`), or all.

    They are kept, and cost nothing.
    """
    return _switch(session, rest, on=False)
