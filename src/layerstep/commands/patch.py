from __future__ import annotations

from layerstep.arguments import Condition, Expr, Flag, Given, Keyword
from layerstep.commands.break_ import condition_of
from layerstep.commands.edit import REACH, WHERE, reach_of
from layerstep.edits.edits import Edits
from layerstep.edits.sources import source_of
from layerstep.edits.sweep import Swept, patched, sweep
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Column, Table, View


@command(
    "patch",
    group="change",
    args=(
        WHERE,
        Keyword("from", Expr("SOURCE", default="", name="source"), "where the value comes from"),
        Keyword("metric", Expr("EXPR", default="", name="metric"), "the number that a sweep looks at"),
        Flag("sweep"),
        *REACH,
        Condition(),
    ),
    examples=("patch blocks.1.mlp from torch.zeros(2, 12, 32)",),
)
def patch(session: Session, given: Given) -> View:
    """Replace what a module returns by a value of another run.

    SOURCE is `out@-1` (the recorded forward before this one), `forward N` (a recorded one), a file of a
    tensor, `input EXPR` (the model run once on another input, on copies), or an expression. The value must
    have the shape of what the module returns. The rest is as in `edit`.
    With `--sweep`, the run stays as it is: for each module that WHERE means, this forward runs once more on
    copies with only that module patched. The table shows what EXPR gives then; `out` in it is the output of
    the model. The module that changes it most carries the difference.
    """
    if not given.source:
        raise BadArguments("patch needs `from SOURCE`", "patch PATH from out@-1")
    source, reach = source_of(session, given.source), reach_of(given)
    if given.sweep:
        if not given.metric:
            raise BadArguments(
                "a sweep needs `metric EXPR`", "patch --sweep 'h.*' from out@-1 metric out.mean()"
            )
        plain, rows = sweep(session, given.where, source, metric=given.metric, reach=reach)
        return _table(plain, rows, session.run.config.max_lines, given.metric)
    edits = session.instruments.get(Edits)
    point = edits.add(
        given.where,
        patched(given.where, source, reach=reach),
        line=f"patch {given.typed}",
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": from {given.source}")


def _table(plain: float, rows: list[Swept], most: int, metric: str) -> Table:
    known = [row for row in rows if row.metric is not None]
    largest = max((abs(row.metric - plain) for row in known if row.metric is not None), default=0.0)
    shown = []
    for row in rows[:most]:
        if row.metric is None:
            shown.append((row.path, "", "", row.trouble))
            continue
        off = row.metric - plain
        bar = "█" * round(20 * abs(off) / largest) if largest else ""
        shown.append((row.path, f"{row.metric:.4g}", f"{off:+.3g}", bar))
    columns = (
        Column("patched", "path"),
        Column("metric", right=True),
        Column("change", right=True),
        Column(""),
    )
    more = f"; {len(rows) - most:,} more modules are not shown" if len(rows) > most else ""
    return Table(columns, tuple(shown), note=f"{metric} is {plain:.4g} without a patch{more}")
