from __future__ import annotations

from layerstep.arguments import Given, Text
from layerstep.commands.enable import points_named
from layerstep.engine.point import Point
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.setting import place_named
from layerstep.registry import command
from layerstep.views import Notice


def _at_line(session: Session, text: str) -> list[Point]:
    place = place_named(session, text)
    spots = [(point, point.source_line) for point in session.points.shown]
    same = [
        point
        for point, spot in spots
        if spot is not None and place is not None and (spot.file, spot.line) == (place.file, place.line)
    ]
    if not same:
        raise BadArguments(f"no point is at {text}", "`info breaks` lists them")
    return same


@command(
    "delete",
    "clear",
    group="stop",
    args=Text("N … | FILE:LINE", optional=True, name="points", completes="point"),
    examples=("delete 1",),
    at_once=True,
)
def delete(session: Session, given: Given) -> Notice:
    """Delete points: those named (`1 3 5-7`), or all.

    With FILE:LINE: the points at that line.
    """
    text = given.points
    points = _at_line(session, text) if ":" in text else points_named(session, text)
    for point in points:
        session.points.delete(point)
    session.rearm()
    return Notice(f"deleted {', '.join(str(point.number) for point in points)}")
