from __future__ import annotations

from layerstep.arguments import Condition, Given, Quoted, Where
from layerstep.commands.break_ import condition_of
from layerstep.engine.points import Log
from layerstep.engine.session import Session
from layerstep.expressions.expression import Template
from layerstep.module_paths.where import Where as WherePattern
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "log",
    group="stop",
    args=(
        Where(),
        Quoted('"text {EXPR} {EXPR:format}"', name="text", what="a text in quotes"),
        Condition(),
    ),
    examples=(
        'log blocks.*.attn "{name} {out.shape} {out.std():.3g}"',
        'log head "{out}" if out.isnan().any()',
    ),
    at_once=True,
)
def log(session: Session, given: Given) -> Notice:
    """Print a line whenever a module has finished.

    The text in braces is Python with the same names as in a condition, and may have a format after a colon.
    If it fails, its error is shown in its place.
    """
    point = session.points.add(
        Log(
            WherePattern.parse(given.where),
            condition=condition_of(given),
            template=Template.parse(given.text),
        )
    )
    session.intake.set_or_leave_pending(point)
    return confirmation(point)
