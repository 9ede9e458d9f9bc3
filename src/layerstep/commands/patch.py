from __future__ import annotations

from layerstep.arguments import Choice, Condition, Expr, Flag, Given, Keyword, Number, Option
from layerstep.calls.events import Phase
from layerstep.commands.break_ import condition_of
from layerstep.commands.edit import REACH, WHERE, reach_of
from layerstep.commands.set_ import GRADIENT, gradient_of
from layerstep.edits.edits import Edits
from layerstep.edits.heads import projection_of
from layerstep.edits.sources import inputs_of, source_of
from layerstep.edits.sweep import (
    Swept,
    head_patched,
    head_trials,
    modules_meant,
    patched,
    sweep,
    token_trials,
    whole_trials,
)
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Column, Group, Notice, Plot, Table, View

MOST_SHOWN = 8
"""Tokens or heads in the table below a heatmap."""


@command(
    "patch",
    group="change",
    args=(
        WHERE,
        Keyword("from", Expr("SOURCE", default="", name="source"), "says where the value comes from"),
        Keyword("metric", Expr("EXPR", default="", name="metric"), "gives the number that a sweep compares"),
        Flag("sweep"),
        Option("by", Choice("token|head", default="", name="by")),
        Option("head", Number("H")),
        *REACH,
        *GRADIENT,
        Condition(),
    ),
    examples=("patch blocks.1.mlp from torch.zeros(2, 12, 32)",),
)
def patch(session: Session, given: Given) -> View:
    """Replace what a module returns by a value of another run.

    SOURCE is `out@-1` (the recorded forward before this one), `forward N` (a recorded one), a file of a
    tensor, `input EXPR` (the model run once on another input, on copies), or an expression. The value must
    have the shape of what the module returns. With `--head`, WHERE is an attention, and only this head is
    taken from `input EXPR`. The rest is as in `edit`.
    With `--sweep`, the run stays as it is: for each module that WHERE means, this forward runs once more on
    copies with only that module patched. The table shows what EXPR gives then; `out` in it is the output of
    the model. The module that changes it most carries the difference. `--by token` patches each token of
    each module by itself, `--by head` each head of each attention: a heatmap shows what each one changes.
    """
    if not given.source:
        raise BadArguments("patch needs `from SOURCE`", "patch PATH from out@-1")
    if given.by and not given.sweep:
        raise BadArguments("--by is for a sweep", "patch --sweep PATH from SOURCE metric EXPR --by token")
    if given.sweep:
        return _sweep(session, given)
    if given.head is not None:
        return _patch_head(session, given)
    source, reach = source_of(session, given.source), reach_of(given)
    point = session.instruments.get(Edits).add(
        given.where,
        patched(given.where, source, reach=reach, gradient=gradient_of(given)),
        line=f"patch {given.typed}",
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": from {given.source}")


def _patch_head(session: Session, given: Given) -> Notice:
    if given.cut:
        raise BadArguments("--cut would cut all heads", "--through, or neither")
    where, heads = projection_of(session.run.models, given.where)
    if not given.head < heads:
        raise BadArguments(f"no head {given.head}", f"there are heads 0 to {heads - 1}")
    source, reach = inputs_of(session, given.source, [where]), reach_of(given)
    point = session.instruments.get(Edits).add(
        where,
        head_patched(source, given.head, heads, reach=reach, gradient=gradient_of(given)),
        line=f"patch {given.typed}",
        phase=Phase.ENTER,
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": from {given.source}, head {given.head} of {heads}")


def _sweep(session: Session, given: Given) -> View:
    if not given.metric:
        raise BadArguments("a sweep needs `metric EXPR`", "patch --sweep h.* from out@-1 metric out.mean()")
    if given.through or given.cut:
        raise BadArguments("a sweep runs no backward pass", "leave --through and --cut out")
    if given.head is not None:
        raise BadArguments("a sweep takes all heads", "--by head in place of --head")
    paths, reach = modules_meant(session, given.where), reach_of(given)
    if given.by == "head":
        trials = head_trials(session, paths, given.source, reach=reach)
    else:
        source = source_of(session, given.source)
        make = token_trials if given.by else whole_trials
        trials = make(session, paths, source, reach=reach)
    plain, rows, notices = sweep(session, trials, metric=given.metric)
    view: View
    if given.by:
        view = _grid(plain, rows, given.metric, given.by)
    else:
        view = _table(plain, rows, session.run.config.max_lines, given.metric)
    return Group((*notices, view)) if notices else view


def _grid(plain: float, rows: list[Swept], metric: str, part: str) -> View:
    """What each token or head of each module changes: all as a heatmap, the largest in a table."""
    columns = sorted({row.part for row in rows if row.part is not None})
    by_path: dict[str, dict[int | None, Swept]] = {}
    for row in rows:
        by_path.setdefault(row.path, {})[row.part] = row
    off = {id(row): row.metric - plain for row in rows if row.metric is not None}
    cells = tuple(
        tuple(off.get(id(found.get(column)), float("nan")) for column in columns)
        for found in by_path.values()
    )
    labels = tuple(map(str, columns))
    title = f"change of {metric}"
    plot = Plot("heatmap", cells, title, names=tuple(by_path), labels=labels, x_label=part)
    largest = sorted((row for row in rows if id(row) in off), key=lambda row: -abs(off[id(row)]))
    shown = tuple(
        (row.path, str(row.part), f"{row.metric:.4g}", f"{off[id(row)]:+.3g}") for row in largest[:MOST_SHOWN]
    )
    table = Table(
        (
            Column("patched", "path"),
            Column(part, right=True),
            Column("metric", right=True),
            Column("change", right=True),
        ),
        shown,
        note=f"{metric} is {plain:.4g} without a patch; these of {len(rows):,} change it most",
    )
    trouble = next((row for row in rows if row.trouble), None)
    said = (Notice(f"{trouble.path}: {trouble.trouble}", level="warn"),) if trouble is not None else ()
    return Group((plot, table, *said))


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
