"""The pause at a line."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from layerstep.engine.pause import Pause
from layerstep.engine.points import Point
from layerstep.engine.program_frames import line_stack

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["line_pause"]


def line_pause(
    session: Session,
    frame: FrameType,
    reason: str,
    *,
    point: Point | None = None,
    trouble: str = "",
    output: tuple[Any, ...] = (),
) -> Pause:
    """Where the run stands: at a point, after a step by lines, or in `set_trace()`.

    `output`: the value that the function is about to return.
    """
    stack = line_stack(frame, session.models)
    modules = [each.module for each in stack if each.module is not None]
    if modules and session.models.owner_of(modules[-1]) is None:
        session.add_model(modules[-1])
    if output:
        stack[0].output, stack[0].state = output[0], "returns"
    if point is not None and point.number:
        reason = f"{point.kind} {point.number}"
    owner = session.models.owner_of(modules[0]) if modules else None
    pause = Pause(session.scope, stack, reason=reason, point=point, trouble=trouble, python=frame)
    pause.forward = owner.forwards if owner is not None else 0
    return pause
