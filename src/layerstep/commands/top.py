from __future__ import annotations

from layerstep.arguments import Expr, Given, Number
from layerstep.engine.session import Session
from layerstep.engine.values import one_tensor
from layerstep.errors import UserError
from layerstep.line_syntax import expressions
from layerstep.registry import command
from layerstep.tensors.format import place
from layerstep.tensors.observing import observing
from layerstep.tensors.places import extremes
from layerstep.tensors.present import tensor_view
from layerstep.views import Column, Figure, Group, Table, View


@command(
    "top",
    group="look",
    args=(Expr("X", optional=True), Number("K", default=5)),
    examples=("top out", "top blocks.0.attn.qkv.weight 3", "top out[0] 8"),
)
def top(session: Session, given: Given) -> View:
    """List the largest and smallest values of a tensor.

    It lists K of each, by default 5, with their indices. Of equal values, the one with the lowest index comes
    first. NaN is left out, Inf is not.
    """
    pieces = expressions(given.x)
    if len(pieces) > 1:
        raise UserError(f"{pieces[1]!r} is too much", "one tensor, then a count")
    _, value = one_tensor(session.prompt, pieces[0] if pieces else "")
    count = min(given.k, session.run.config.max_lines)
    with observing():
        ends = [extremes(value, count, largest=largest) for largest in (True, False)]
    rows = []
    for i in range(max(map(len, ends))):
        cells: list[str] = []
        for end in ends:
            cells += [Figure(f"{end[i][1]:.6g}", end[i][1]), place(end[i][0])] if i < len(end) else ["", ""]
        rows.append(tuple(cells))
    columns = (
        Column("largest", right=True),
        Column("at", "dim"),
        Column("smallest", right=True),
        Column("at", "dim"),
    )
    note = "" if rows else "no values to rank"
    line = tensor_view(value, limit=session.run.config.sample_above)
    return Group((line, Table(columns, tuple(rows), note=note)))
