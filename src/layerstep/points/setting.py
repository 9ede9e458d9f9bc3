"""Set breakpoints: at modules, at operations, at lines."""

from __future__ import annotations

from layerstep.calls.events import Phase
from layerstep.engine.point import Point
from layerstep.engine.points import Break, BreakAtLine, BreakAtOp
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.expressions.expression import Expression
from layerstep.module_paths.where import Where
from layerstep.source_lines.places import Place, find_function, find_place, parse_place
from layerstep.source_lines.watcher import SourceLines

__all__ = ["place_named", "set_breakpoint"]


def set_breakpoint(
    session: Session,
    where: str,
    phase: str = "exit",
    *,
    inside: str = "",
    condition: str = "",
    temporary: bool = False,
) -> Point:
    """Set a breakpoint at a module, `op:NAME` or a line; without `where`, at the selected module.

    `inside`: the modules in which an operation is looked for.
    """
    asked = Expression.parse(condition) if condition else None
    if where.startswith("op:"):
        _check_op(where, phase)
        at = Where.parse(inside) if inside else None
        name = where.removeprefix("op:")
        at_op = session.points.add(BreakAtOp(at, op=name, condition=asked, temporary=temporary))
        if at is not None:
            session.intake.set_or_leave_pending(at_op)
        session.rearm()
        return at_op
    if inside:
        raise BadArguments(f"'in {inside}' is too much", "break op:NAME [in WHERE] [if EXPR]")
    line = place_named(session, where) if phase == "exit" or ":" in where else None
    if line is not None:
        if phase != "exit":
            raise BadArguments(f"a line has no {phase}", "break FILE:LINE [if EXPR]")
        at_line = session.points.add(BreakAtLine(source_line=line, condition=asked, temporary=temporary))
        session.rearm()
        return at_line
    pattern = Where.parse(where or _here(session))
    point = session.points.add(
        Break(pattern, phase=Phase(phase), condition=asked, temporary=temporary),
    )
    session.intake.set_or_leave_pending(point)
    return point


def _check_op(where: str, phase: str) -> None:
    hint = "break op:NAME [in WHERE] [if EXPR]"
    if where == "op:":
        raise BadArguments(f"{where!r} is no op", hint)
    if phase != "exit":
        raise BadArguments(f"an op has no {phase}", hint)


def place_named(session: Session, text: str) -> Place | None:
    """The line or function that a text names; None where it names modules.

    A bare number is a line at a stop at a line; elsewhere it is one if no module has that name.
    """
    script = session.instruments.get(SourceLines).script
    here, at_line = script, False
    if session.run.pause is not None and session.run.pause.frame is not None:
        frame = session.run.pause.frame
        here, at_line = frame.python.f_code.co_filename if frame.python is not None else script, frame.at_line
    if text.isdigit() and not at_line and (not len(session.run.models) or session.run.models.ending_in(text)):
        return None
    place = parse_place(text, here=here)
    if place is not None:
        find_place(place, script)
        return place
    if session.run.models.ending_in(text) or session.run.models.at(text) is not None:
        return None
    return find_function(text, script)


def _here(session: Session) -> str:
    frame = session.run.pause.frame if session.run.pause is not None else None
    if frame is None or frame.module is None:
        raise BadArguments("WHERE is missing", "a path, a glob, /regex/ or type:Class")
    return frame.path.partition("|")[0]
