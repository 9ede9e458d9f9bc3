from __future__ import annotations

from layerstep.engine.events import Kind, Resume
from layerstep.engine.expression import Expression
from layerstep.engine.points import PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where, WhereKind
from layerstep.errors import BadArguments, BadCondition, UnknownPath
from layerstep.registry import command


@command(
    "until",
    group="run",
    usage="PATH | forward N | EXPR",
    examples=("until blocks.1.attn", "until forward 2", "until out.std() > 0.5"),
    complete="where",
)
def until(session: Session, rest: str) -> Resume:
    """Run until a module, a forward, or an expression.

    `until PATH` stops when the module there has finished next. `until forward N` stops at the entry of
    forward N. `until EXPR` asks after every module and stops when the answer is true.
    """
    words = rest.split()
    if not words:
        raise BadArguments("until needs an argument")
    if words[0] == "forward" and len(words) == 2:
        return _forward(session, words[1])
    if len(words) == 1:
        where = Where.parse(rest)
        try:
            targets = where.look_up(session.models)
        except UnknownPath:
            if where.kind is not WhereKind.PATH or not _is_expression(session, rest):
                raise
        else:
            point = session.points.add(PointKind.UNTIL, where)
            point.place(targets, session.models)
            return Resume(Kind.CONTINUE)
    session.points.add(PointKind.UNTIL, None, condition=Expression.parse(rest))
    return Resume(Kind.CONTINUE)


def _forward(session: Session, text: str) -> Resume:
    if not text.isdigit():
        raise BadArguments(f"{text!r} is no forward number")
    main = session.models.main
    if main is not None and int(text) <= main.forwards:
        raise BadArguments(f"forward {text} has begun already", f"this is forward {main.forwards}")
    return Resume(Kind.FORWARD, forward=int(text))


def _is_expression(session: Session, text: str) -> bool:
    """A single word is an expression only if it begins with a name that is known here."""
    try:
        Expression.parse(text)
    except BadCondition:
        return False
    head = text.replace("(", ".").replace("[", ".").partition(".")[0]
    return not head.isidentifier() or session.scope.knows(head)
