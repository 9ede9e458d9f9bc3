from __future__ import annotations

from layerstep.commands.enable import points_named
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice


@command("delete", group="stop", usage="[N …]", examples=("delete 1",), complete="point")
def delete(session: Session, rest: str) -> Notice:
    """Delete points: those named (`1 3 5-7`), or all."""
    points = points_named(session, rest)
    for point in points:
        session.points.delete(point)
    session.rearm()
    return Notice(f"deleted {', '.join(str(point.number) for point in points)}")
