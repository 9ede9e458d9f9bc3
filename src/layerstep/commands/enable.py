from __future__ import annotations

from layerstep.arguments import Given, Text
from layerstep.engine.point import Point
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice

__all__ = ["points_named"]


def points_named(session: Session, text: str) -> list[Point]:
    """The points of `1 3 5-7`; all of them if nothing is named."""
    named: list[Point] = []
    for word in text.replace(",", " ").split():
        first, dash, last = word.partition("-")
        if dash and first.isdigit() and last.isdigit():
            named += [point for point in session.points.shown if int(first) <= point.number <= int(last)]
        else:
            named.append(session.points.get(word))
    if text.strip():
        return named
    if not session.points.shown:
        raise BadArguments("there are no points", "`break WHERE` sets one")
    return session.points.shown


def _switch(session: Session, text: str, *, on: bool) -> Notice:
    points = points_named(session, text)
    for point in points:
        point.enabled = on
    session.rearm()
    numbers = ", ".join(str(point.number) for point in points)
    return Notice(f"{'enabled' if on else 'disabled'} {numbers}")


_POINTS = Text("N …", optional=True, name="points", completes="point")


@command("enable", group="stop", args=_POINTS, examples=("enable 1", "enable"), at_once=True)
def enable(session: Session, given: Given) -> Notice:
    """Switch points on: those named (`1 3 5-7`), or all."""
    return _switch(session, given.points, on=True)


@command("disable", group="stop", args=_POINTS, examples=("disable 1",), at_once=True)
def disable(session: Session, given: Given) -> Notice:
    """Switch points off: those named (`1 3 5-7`), or all.

    They are kept, and cost nothing.
    """
    return _switch(session, given.points, on=False)
