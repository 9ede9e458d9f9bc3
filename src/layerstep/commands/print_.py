from __future__ import annotations

from layerstep.arguments import Expr, Given
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.registry import command
from layerstep.tensors.present import present
from layerstep.views import Fields, View


@command(
    "print",
    "p",
    "pp",
    group="look",
    args=Expr("EXPR"),
    examples=("print out[0, 0, :3]", "p name"),
)
def print_(session: Session, given: Given) -> View:
    """Show the value of an expression and keep it as `$1`, ….

    A tensor is shown as one line, and a small one also with its values. `inspect` says more.
    """
    value = value_of(session.prompt, given.expr)
    number = session.run.results.keep(value)
    return Fields((), ((f"${number}" if number is not None else "=", present(value)),))
