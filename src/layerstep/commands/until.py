from __future__ import annotations

from layerstep.arguments import Expr, Form, Given, Number
from layerstep.calls.events import Phase
from layerstep.commands.break_ import PHASE
from layerstep.engine.points import Until
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, BadCondition, UnknownPath
from layerstep.expressions.expression import Expression
from layerstep.module_paths.where import Where, WhereKind
from layerstep.points.setting import place_named
from layerstep.registry import command


@command(
    "until",
    group="run",
    args=(
        Expr("LINE | FILE:LINE | EXPR | PATH", optional=True, name="target", completes="where"),
        PHASE,
        Form("forward", Number("N", least=1, what="forward number")),
        Form("step", Number("N", what="number of training steps")),
    ),
    examples=("until blocks.1.attn", "until forward 2", "until step 1", "until out.std() > 0.5"),
)
def until(session: Session, given: Given) -> Resume:
    """Run until a module, a line, a forward, a step, or EXPR.

    `until PATH` stops when this module has finished its next call. `until forward N` stops at the entry of
    forward N, `until step N` at the first forward after N training steps (an optimizer's `step()`).
    `until EXPR` evaluates EXPR after every module and stops when it is true.
    `until LINE` stops at that line or a later one of the function that runs here, or when the function
    returns. `until` alone stops at a line below this one, so a loop runs to its end. `until FILE:LINE` and
    `until FUNCTION` stop there, in any function.
    """
    if given.form == "forward":
        return _forward(session, given.n)
    if given.form == "step":
        return _step(session, given.n)
    by_line = _line(session, given.typed)
    if by_line is not None:
        return by_line
    if not given.target:
        raise BadArguments("until needs an argument")
    text = given.target
    if len(text.split()) == 1:
        where = Where.parse(text)
        try:
            targets = where.look_up(session.run.models)
        except UnknownPath:
            if where.kind is not WhereKind.PATH or not _is_expression(session, text):
                raise
        else:
            point = session.points.add(Until(where, phase=Phase(given.phase)))
            point.place(targets, session.run.models)
            return Resume(Kind.CONTINUE)
    session.points.add(Until(condition=Expression.parse(given.typed)))
    return Resume(Kind.CONTINUE)


def _line(session: Session, rest: str) -> Resume | None:
    """The forms that name a line or a function; None where it is another."""
    running = session.run.pause.frame if session.run.pause is not None else None
    at_line = running is not None and running.at_line
    if not rest and at_line and running is not None and running.within is not None:
        return Resume(Kind.UNTIL_LINE, line=running.within.f_lineno + 1)
    if rest.isdigit() and (at_line or (running is not None and not session.run.models.ending_in(rest))):
        return Resume(Kind.UNTIL_LINE, line=int(rest))
    place = place_named(session, rest)
    if place is None:
        return None
    session.points.add(Until(source_line=place, phase=Phase.LINE))
    return Resume(Kind.CONTINUE)


def _forward(session: Session, number: int) -> Resume:
    main = session.run.models.main
    if main is not None and number <= main.forwards:
        raise BadArguments(f"forward {number} has begun already", f"this is forward {main.forwards}")
    return Resume(Kind.FORWARD, forward=number)


def _step(session: Session, number: int) -> Resume:
    if number <= session.run.training.count:
        raise BadArguments(
            f"training step {number} is done already", f"{session.run.training.count} are done"
        )
    return Resume(Kind.TRAINED, step=number)


def _is_expression(session: Session, text: str) -> bool:
    """A single word is an expression only if it begins with a name that is known here."""
    try:
        Expression.parse(text)
    except BadCondition:
        return False
    head = text.replace("(", ".").replace("[", ".").partition(".")[0]
    return not head.isidentifier() or session.run.scope.knows(head)
