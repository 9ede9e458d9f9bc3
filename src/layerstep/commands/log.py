from __future__ import annotations

import ast
import re

from layerstep.commands.break_ import said, split_condition
from layerstep.engine.events import Phase
from layerstep.engine.expression import Template
from layerstep.engine.model_intake import set_or_leave_pending
from layerstep.engine.points import PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice

_FORM = re.compile(
    r"""\s*(?P<where>\S+)\s+(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')(?P<rest>.*)""", re.DOTALL
)


@command(
    "log",
    group="stop",
    usage='WHERE "text {EXPR} {EXPR:format}" [if EXPR]',
    examples=(
        'log blocks.*.attn "{name} {out.shape} {out.std():.3g}"',
        'log head "{out}" if out.isnan().any()',
    ),
    complete="where",
)
def log(session: Session, rest: str) -> Notice:
    """Print a line whenever a module has finished.

    What stands in braces is Python over the same names as a condition, with a format after a colon. A
    part that fails shows its error in its place.
    """
    match = _FORM.fullmatch(rest)
    if match is None:
        raise BadArguments("log needs WHERE and a text in quotes")
    extra, condition = split_condition(match["rest"])
    if extra:
        raise BadArguments(f"{extra!r} is too much")
    point = session.points.add(
        PointKind.LOG,
        Where.parse(match["where"]),
        phase=Phase.EXIT,
        condition=condition,
        template=Template.parse(ast.literal_eval(match["quoted"])),
    )
    set_or_leave_pending(session, point)
    return said(point)
