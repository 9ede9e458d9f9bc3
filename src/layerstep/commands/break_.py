from __future__ import annotations

from layerstep.arguments import Choice, Condition, Given, Keyword, Pattern, Where
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
    Keyword("in", Pattern(name="inside")),
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
    at_once=True,
)
def break_(session: Session, given: Given) -> View:
    """Stop at a module, an op, a line or a function.

    WHERE is a path or any unique end of one (`1.attn`), a glob (`blocks.*.attn`; `**` crosses dots), a
    `/regex/`, or `type:LayerNorm`. `break enter` alone means the module of this stop. EXPR is Python with
    `inp`, `out`, `kwargs`, `mod`, `name`, `forward` and the caller's own variables. If EXPR raises, the run
    stops, too, and shows the error.
    `backward` stops when the backward pass has gone through the module. There, `grad_out` is the gradient of
    its output, and `grad_in` the gradient of its input, as far as it comes from this module. `step`, `next`,
    `finish` and `into` then go on through the backward pass, in its own order.
    `op:NAME` stops after an op of that name in the forward of the models, or of the modules that match WHERE.
    NAME is the last part of what the code calls: `F.softmax`, `torch.softmax` and `x.softmax` are `softmax`,
    and `@` is `matmul`. With `aten.` it is the aten op below. NAME may be a glob. In EXPR, `inp` and `out`
    are those of the op.
    `FILE:LINE` stops before a line of the program runs. FILE is any unique end of a path. `:LINE` is a line
    of the file that runs here; at a stop at a line, LINE alone means the same. A line without code means the
    next line with code. `Class.method` and `function` stop at the first line of a function. EXPR then sees
    the function's own variables.

    If the script has not made its model yet, the point is pending. It says so when it takes effect. Without
    arguments, `break` lists the points.
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
    at_once=True,
)
def tbreak(session: Session, given: Given) -> Notice:
    """Stop once: a breakpoint that is gone after its first stop.

    It takes the same arguments as `break`.
    """
    point = _set(session, given, temporary=True)
    return confirmation(point, _suffix(point) + " once")
