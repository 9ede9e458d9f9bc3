from __future__ import annotations

from typing import Any

from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.arguments import Condition, Expr, Given, Keyword, Real
from layerstep.commands.break_ import condition_of
from layerstep.commands.edit import COMPILED, REACH, WHERE, check_compiled, reach_of
from layerstep.edits.acting import Occasion
from layerstep.edits.edits import Edits
from layerstep.edits.values import replacing
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.expressions.expression import Expression
from layerstep.expressions.scope import run_python
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "scale",
    group="change",
    args=(WHERE, Expr("FACTOR", name="factor"), *REACH, COMPILED, Condition()),
    examples=("scale blocks.1.mlp 0.5",),
)
def scale(session: Session, given: Given) -> Notice:
    """Multiply what a module returns, in every call from now on.

    FACTOR is a number or an expression. The rest is as in `edit`. With `--compiled`, a compiled model stays
    compiled: torch compiles it once more, with the edit in it. FACTOR is then evaluated once, now.
    """
    if given.compiled:
        check_compiled(given)
        value, _ = run_python(given.factor, session.run.scope)
        if not isinstance(value, int | float):
            raise BadArguments(f"{given.factor} is no number", "--compiled takes one")
        edits = session.instruments.get(Edits)
        return edits.edit_compiled(given.where, factor=float(value), line=f"scale {given.typed}")
    factor = Expression.parse(given.factor)

    def scaled(old: Tensor, occasion: Occasion) -> Any:
        return old * factor.evaluate(session.run.scope_at(occasion.place))

    edits, reach = session.instruments.get(Edits), reach_of(given)
    point = edits.add(
        given.where,
        replacing(scaled, reach=reach),
        line=f"scale {given.typed}",
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": times {given.factor}")


@command(
    "steer",
    group="change",
    args=(
        WHERE,
        Expr("VECTOR", name="vector"),
        Keyword("by", Real("F", default=1.0)),
        *REACH,
        COMPILED,
        Condition(),
    ),
    examples=("steer blocks.1.mlp torch.ones(32) by 0.1 tokens -1",),
)
def steer(session: Session, given: Given) -> Notice:
    """Add a vector to what a module returns.

    It acts in every call from now on. VECTOR is an expression; it is evaluated once, now. `by F` multiplies
    it. The rest is as in `edit`; `--compiled` is as in `scale`.
    """
    vector, _ = run_python(given.vector, session.run.scope)
    if not is_tensor(vector):
        raise BadArguments(f"{given.vector} is no tensor")
    if given.compiled:
        check_compiled(given)
        added = given.by * vector.detach()
        line = f"steer {given.typed}"
        return session.instruments.get(Edits).edit_compiled(given.where, factor=1.0, added=added, line=line)

    def steered(old: Tensor, occasion: Occasion) -> Any:
        return old + given.by * vector.to(old)

    edits, reach = session.instruments.get(Edits), reach_of(given)
    point = edits.add(
        given.where,
        replacing(steered, reach=reach),
        line=f"steer {given.typed}",
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": plus {given.by:g} times {given.vector}")
