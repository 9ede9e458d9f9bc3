from __future__ import annotations

from layerstep.commands.break_ import place_named
from layerstep.engine.events import Kind, Phase, Resume
from layerstep.engine.expression import Expression
from layerstep.engine.points import PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where, WhereKind
from layerstep.errors import BadArguments, BadCondition, UnknownPath
from layerstep.registry import command


@command(
    "until",
    group="run",
    usage="PATH [enter|exit|backward] | forward N | step N | LINE | FILE:LINE | EXPR",
    examples=("until blocks.1.attn", "until forward 2", "until step 1", "until out.std() > 0.5"),
    complete="where",
)
def until(session: Session, rest: str) -> Resume:
    """Run until a module, a line, a forward, a step, or EXPR.

    `until PATH` stops when the module there has finished next. `until forward N` stops at the entry of
    forward N, `until step N` at the first forward after N training steps (an optimizer's `step()`).
    `until EXPR` asks after every module and stops when the answer is true.
    `until LINE` stops at that line or a later one of the function that runs here, or when it is left; without
    LINE, at a line below this one, so that a loop is run to its end. `until FILE:LINE` and `until FUNCTION`
    stop there, wherever the run comes from.
    """
    words = rest.split()
    by_line = _line(session, rest)
    if by_line is not None:
        return by_line
    if not words:
        raise BadArguments("until needs an argument")
    if words[0] == "forward" and len(words) == 2:
        return _forward(session, words[1])
    if words[0] == "step" and len(words) == 2 and words[1].isdigit():
        return _step(session, int(words[1]))
    names_phase = len(words) == 2 and words[1] in ("enter", "exit", "backward")
    phase = Phase(words.pop()) if names_phase else Phase.EXIT
    if len(words) == 1:
        rest = words[0]
        where = Where.parse(rest)
        try:
            targets = where.look_up(session.models)
        except UnknownPath:
            if where.kind is not WhereKind.PATH or not _is_expression(session, rest):
                raise
        else:
            point = session.points.add(PointKind.UNTIL, where, phase=phase)
            point.place(targets, session.models)
            return Resume(Kind.CONTINUE)
    session.points.add(PointKind.UNTIL, None, condition=Expression.parse(rest))
    return Resume(Kind.CONTINUE)


def _line(session: Session, rest: str) -> Resume | None:
    """The forms that name a line or a function; None where it is another."""
    running = session.pause.frame if session.pause is not None else None
    at_line = running is not None and running.at_line
    if not rest and at_line and running is not None and running.within is not None:
        return Resume(Kind.UNTIL_LINE, line=running.within.f_lineno + 1)
    if rest.isdigit() and (at_line or (running is not None and not session.models.ending_in(rest))):
        return Resume(Kind.UNTIL_LINE, line=int(rest))
    place = place_named(session, rest)
    if place is None:
        return None
    session.points.add(PointKind.UNTIL, None, source_line=place, phase=Phase.LINE)
    return Resume(Kind.CONTINUE)


def _forward(session: Session, text: str) -> Resume:
    if not text.isdigit():
        raise BadArguments(f"{text!r} is no forward number")
    main = session.models.main
    if main is not None and int(text) <= main.forwards:
        raise BadArguments(f"forward {text} has begun already", f"this is forward {main.forwards}")
    return Resume(Kind.FORWARD, forward=int(text))


def _step(session: Session, number: int) -> Resume:
    if number <= session.training.count:
        raise BadArguments(f"training step {number} is done already", f"{session.training.count} are done")
    return Resume(Kind.TRAINED, step=number)


def _is_expression(session: Session, text: str) -> bool:
    """A single word is an expression only if it begins with a name that is known here."""
    try:
        Expression.parse(text)
    except BadCondition:
        return False
    head = text.replace("(", ".").replace("[", ".").partition(".")[0]
    return not head.isidentifier() or session.scope.knows(head)
