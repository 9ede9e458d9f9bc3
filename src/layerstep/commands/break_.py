from __future__ import annotations

from layerstep.arguments import Choice, Condition, Given, Keyword, Where, Word
from layerstep.calls.events import Phase
from layerstep.commands.info import breaks
from layerstep.engine.point import Point
from layerstep.engine.session import Session
from layerstep.expressions.expression import Expression
from layerstep.points.description import confirmation
from layerstep.points.setting import set_breakpoint
from layerstep.registry import command
from layerstep.views import Notice, View

__all__ = ["PHASE", "condition_of"]

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


def _set(session: Session, given: Given, *, temporary: bool = False) -> Point:
    return set_breakpoint(
        session,
        given.where,
        given.phase,
        inside=given.inside,
        condition=given.condition,
        temporary=temporary,
    )


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
        return breaks(session)
    point = _set(session, given)
    return confirmation(point, _suffix(point))


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
    point = _set(session, given, temporary=True)
    return confirmation(point, _suffix(point) + " once")
