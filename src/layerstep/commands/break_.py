from __future__ import annotations

from layerstep.argument_parsing import parse
from layerstep.arguments import Choice, Condition, Given, Keyword, Where, Word, forms_of
from layerstep.engine.events import Phase
from layerstep.engine.expression import Expression
from layerstep.engine.model_intake import set_or_leave_pending
from layerstep.engine.points import Point, PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where as WherePattern
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.source_lines.places import Place, find_function, find_place, parse_place
from layerstep.source_lines.watcher import SourceLines
from layerstep.views import Notice, View
from layerstep.watchpoints.watchpoint import Watchpoint

__all__ = ["PHASE", "add_point", "condition_of", "described", "place_named", "said"]

PHASE = Choice("enter|exit|backward", default="exit", name="phase")
_POINT = (
    Where("WHERE | FILE:LINE | op:NAME", optional=True, name="where"),
    Keyword("in", Word("WHERE", name="inside", completes="where")),
    PHASE,
    Condition(),
)


def condition_of(given: Given) -> Expression | None:
    """The condition of a point, if one was typed."""
    return Expression.parse(given.condition) if given.condition else None


def add_point(session: Session, text: str, *, temporary: bool = False) -> Point:
    """Set a breakpoint from `WHERE [enter|exit|backward] [if EXPR]`; without WHERE, at the selected one."""
    return _add(session, parse("break", forms_of(_POINT), text), temporary=temporary)


def _add(session: Session, given: Given, *, temporary: bool = False) -> Point:
    condition, phase = condition_of(given), Phase(given.phase)
    if given.where.startswith("op:"):
        return _add_op_point(session, given, condition, temporary=temporary)
    if given.inside:
        raise BadArguments(f"'in {given.inside}' is too much", "break op:NAME [in WHERE] [if EXPR]")
    line = place_named(session, given.where)
    if line is not None:
        return _add_line_point(session, line, phase, condition=condition, temporary=temporary)
    where = WherePattern.parse(given.where or _here(session))
    point = session.points.add(PointKind.BREAK, where, phase=phase, condition=condition, temporary=temporary)
    set_or_leave_pending(session, point)
    return point


def place_named(session: Session, text: str) -> Place | None:
    """The line or function that a text names; None where it names modules.

    A bare number is a line at a stop at a line; elsewhere it is one if no module has that name.
    """
    script = session.instruments.get(SourceLines).script
    here, at_line = script, False
    if session.pause is not None and session.pause.frame is not None:
        frame = session.pause.frame
        here, at_line = frame.python.f_code.co_filename if frame.python is not None else script, frame.at_line
    if text.isdigit() and not at_line and (not len(session.models) or session.models.ending_in(text)):
        return None
    place = parse_place(text, here=here)
    if place is not None:
        find_place(place, script)
        return place
    if session.models.ending_in(text) or session.models.at(text) is not None:
        return None
    return find_function(text, script)


def _add_line_point(
    session: Session, place: Place, phase: Phase, *, condition: Expression | None, temporary: bool
) -> Point:
    if phase is not Phase.EXIT:
        raise BadArguments(f"a line has no {phase.value}", "break FILE:LINE [if EXPR]")
    point = session.points.add(
        PointKind.BREAK, None, source_line=place, phase=Phase.LINE, condition=condition, temporary=temporary
    )
    session.rearm()
    return point


def _add_op_point(session: Session, given: Given, condition: Expression | None, *, temporary: bool) -> Point:
    """The same from `op:NAME [in WHERE]`."""
    hint = "break op:NAME [in WHERE] [if EXPR]"
    name = given.where.removeprefix("op:")
    if not name:
        raise BadArguments(f"{given.where!r} is no op", hint)
    if given.phase != "exit":
        raise BadArguments(f"an op has no {given.phase}", hint)
    where = WherePattern.parse(given.inside) if given.inside else None
    point = session.points.add(
        PointKind.BREAK, where, phase=Phase.EXIT, op=name, condition=condition, temporary=temporary
    )
    if where is not None:
        set_or_leave_pending(session, point)
    session.rearm()
    return point


def _here(session: Session) -> str:
    frame = session.pause.frame if session.pause is not None else None
    if frame is None or frame.module is None:
        raise BadArguments("WHERE is missing", "a path, a glob, /regex/ or type:Class")
    return frame.path.partition("|")[0]


def described(point: Point) -> str:
    """Where a point is, in a few words."""
    if isinstance(point, Watchpoint):
        return point.name
    if point.source_line is not None:
        return point.source_line.label
    if point.where is None and point.check is not None:
        return "the models"
    if point.op:
        return f"op:{point.op}" + (f" in {_modules(point)}" if point.where is not None else "")
    return _modules(point)


def _modules(point: Point) -> str:
    if point.is_pending:
        return point.where.text if point.where else "**"
    if len(point.targets) == 1:
        return point.targets[0][0]
    return f"{point.where.text if point.where else '**'} ({len(point.targets)} modules)"


@command(
    "break",
    "b",
    group="stop",
    args=_POINT,
    examples=(
        "break blocks.1.attn",
        "break blocks.*.mlp enter",
        "break head backward if grad_out.norm() > 10",
        "break type:Linear if out.std() > 2",
        "break op:softmax",
        "break op:*norm* in blocks.1 if out.max() > 9",
        "break op:aten.mm in head",
    ),
)
def break_(session: Session, given: Given) -> View:
    """Stop at a module, an op, a line or a function.

    WHERE is a path or any unique tail of one (`1.attn`), a glob (`blocks.*.attn`; `**` crosses segments), a
    `/regex/`, or `type:LayerNorm`; `break enter` alone is at the module that the run is stopped at.
    EXPR is Python over `inp`, `out`, `kwargs`, `mod`, `name`, `forward` and the caller's own variables;
    a condition that raises stops too and shows the error.
    `backward` stops when the backward pass has gone through the module: `grad_out` is the gradient of its
    output, `grad_in` that of its input as far as it comes out of this module. `step`, `next`, `finish` and
    `into` then go on through the backward pass, in its own order.
    `op:NAME` stops after an op of that name inside the models, or inside the modules that match WHERE: by
    the last part of what the code calls (`F.softmax`, `torch.softmax` and `x.softmax` are `softmax`, `@` is
    `matmul`), or with `aten.` by the aten op below it, in the forward. Globs may be used. `inp` and `out` in
    EXPR are those of the op.
    FILE:LINE stops before a line of the program runs: FILE is any end of a path that is unique. `:LINE` is a
    line of the file that runs here, and so is a bare LINE at a stop at a line. A line without code means the
    next one that has some. `Class.method` and `function` stop at the first line of a function. EXPR is then
    over the function's own variables.
    Before a script has made its model a point is pending, and says so when it is set. Without arguments:
    list the points.
    """
    if not given.typed:
        from layerstep.commands.info import breaks  # which asks this file how points are described

        return breaks(session)
    point = _add(session, given)
    return said(point, _suffix(point))


def said(point: Point, words: str = "", *, what: str = "") -> Notice:
    """The answer to setting a point."""
    text = f"{point.kind} {point.number}{what} at {described(point)}{words}"
    if point.source_line is not None:
        waits = f"{text}, pending until such a file is loaded"
        return Notice(waits if point.is_pending else text, point.source_line.moved, level="good")
    if point.trouble:
        return Notice(f"{text}, pending", point.trouble, level="warn")
    return Notice(f"{text}, pending until a model runs" if point.is_pending else text, level="good")


def _suffix(point: Point) -> str:
    words = f" {point.phase}" if point.phase not in (Phase.EXIT, Phase.LINE) else ""
    return words + (f" if {point.condition.text}" if point.condition is not None else "")


@command(
    "tbreak",
    group="stop",
    args=_POINT,
    examples=("tbreak head", "tbreak op:matmul in blocks.1.attn"),
)
def tbreak(session: Session, given: Given) -> Notice:
    """Stop once: a breakpoint that is gone after its first stop.

    As `break` otherwise.
    """
    point = _add(session, given, temporary=True)
    return said(point, _suffix(point) + " once")
