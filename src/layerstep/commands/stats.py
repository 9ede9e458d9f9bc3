from __future__ import annotations

import torch
from torch import nn

from layerstep.arguments import Choice, Expr, Flag, Given, Option
from layerstep.engine.session import Session
from layerstep.engine.values import as_it_was, value_of
from layerstep.errors import UserError
from layerstep.layers.calls import layers_in_view
from layerstep.line_syntax import expressions, is_expression
from layerstep.module_paths.where import Where, WhereKind
from layerstep.registry import command
from layerstep.tensors.format import dims, human_bytes, number, share
from layerstep.tensors.observing import observing
from layerstep.tensors.report import limit_for, report
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.summary import Summary, summarize
from layerstep.views import Column, Group, Notice, Table, View

MOST_TENSORS = 20
MOST_RANKED = 1_500
Leaf = tuple[str, torch.Tensor]
_COLUMNS = ("shape", "mean", "std", "min", "max", "nan", "inf", "zero", "bytes")


@command(
    "stats",
    group="look",
    args=(
        Expr("X …", optional=True),
        Flag("params"),
        Option("sort", Choice("COLUMN", of=("name", *_COLUMNS))),
        Flag("exact"),
    ),
    examples=(
        "stats out",
        "stats blocks.0.attn.qkv.weight inp",
        "stats blocks.0.* --params --sort std",
        "stats --params",
    ),
)
def stats(session: Session, given: Given) -> View:
    """Show statistics of tensors, or a table of them over layers.

    X is an expression. The answer has mean, std, extremes, norms, percentiles, outliers, the place of the
    first bad value, and what is risky in this dtype. Figures of floats cover the finite elements; std is that
    of the population. Several X, a container, a glob or another WHERE give a table with a row for each
    tensor: the outputs in view, or with `--params` the parameters. `--sort` takes the name of a column.
    Tensors of more than 268 million elements are sampled, and the answer says so. `--exact` reads all
    elements.
    """
    text, exact, sort, most = given.x, given.exact, given.sort, session.run.config.max_lines
    if given.params:
        return _table(_parameters(session, text or "**"), sort, exact=exact, most=most)
    if text and not is_expression(text) and Where.parse(text).kind is not WhereKind.PATH and " " not in text:
        return _table(_outputs(session, text), sort, exact=exact, most=most)
    leaves: list[Leaf] = []
    notes: list[Notice] = []
    for piece in expressions(text) or [""]:
        value, note = as_it_was(session.run, piece, value_of(session.prompt, piece))
        notes += [Notice(note)] if note else []
        leaves += [((piece or "out") + inner, tensor) for inner, tensor in _tensors(value, piece)]
    if len(leaves) == 1 and not sort:
        limit = None if exact else limit_for([leaves[0][1]])
        view: View = report(leaves[0][1], limit=limit, exact=exact).view(leaves[0][0])
    else:
        view = _table(leaves, sort, exact=exact, most=most)
    return Group((*notes, view)) if notes else view


def _tensors(value: object, text: str) -> list[Leaf]:
    if isinstance(value, nn.Module):
        return [(f".{name}", parameter) for name, parameter in value.named_parameters()]
    leaves = tensors_in(value, most=MOST_TENSORS)
    if not leaves:
        raise UserError(f"no tensor in {text or 'it'}", f"it is a {type(value).__name__}")
    return leaves


def _parameters(session: Session, where: str) -> list[Leaf]:
    seen: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in Where.parse(where).look_up(session.run.models):
        for name, parameter in module.named_parameters():
            seen.setdefault(id(parameter), (f"{path}.{name}", parameter))
    if not seen:
        raise UserError(f"no parameter in {where}")
    return list(seen.values())


def _outputs(session: Session, where: str) -> list[Leaf]:
    layers = layers_in_view(session, where)
    return [
        (layer.path + inner, tensor)
        for layer in layers
        for inner, tensor in tensors_in(layer.output, most=MOST_TENSORS)
    ]


def _table(leaves: list[Leaf], sort: str, *, exact: bool, most: int) -> View:
    looked = leaves[:most] if not sort else leaves[:: -(-len(leaves) // MOST_RANKED)]
    limit = None if exact else limit_for([tensor for _, tensor in looked])
    with observing():
        rows = [(name, summarize(tensor, limit=limit, brief=True)) for name, tensor in looked]
    if sort:
        rows.sort(key=lambda row: _rank(row[1], sort, row[0]))
    kinds = {summary.dtype for _, summary in rows}
    shown = [(name, *_cells(summary, with_dtype=len(kinds) > 1)) for name, summary in rows[:most]]
    columns = (Column("tensor", "path"), *(Column(name, right=name != "shape") for name in _COLUMNS))
    kept = [i for i, column in enumerate(columns) if column.name not in ("nan", "inf") or _some(shown, i)]
    cells = tuple(tuple(row[i] for i in kept) for row in shown)
    notes = [f"all {kinds.pop()}"] if len(kinds) == 1 else []
    if len(kept) == len(columns) - 2:
        notes.append("no NaN and no Inf in these")
    notes += _left_out(rows, len(leaves), len(shown))
    return Table(tuple(columns[i] for i in kept), cells, note="; ".join(notes))


def _left_out(rows: list[tuple[str, Summary]], there: int, shown: int) -> list[str]:
    """What was not looked at, or not shown."""
    notes = []
    if shown < len(rows) < there:
        notes.append(f"ranked by {len(rows):,} of {there:,}, evenly spread")
    if shown < there:
        notes.append(f"{there - shown:,} more; a narrower WHERE shows them")
    sampled = sum(summary.stats is not None and summary.stats.sampled is not None for _, summary in rows)
    if sampled:
        notes.append(f"{sampled:,} of them sampled; --exact reads all")
    return notes


def _some(rows: list[tuple[str, ...]], column: int) -> bool:
    """Is there anything in a column that is empty in a healthy model?"""
    return any(row[column] not in ("0", "-") for row in rows)


def _rank(summary: Summary, column: str, name: str) -> tuple[float, str]:
    """The largest first; what has no such number comes last."""
    stats = summary.stats
    if column == "name":
        return 0.0, name
    if column in ("bytes", "shape"):
        return -float(summary.nbytes or 0), name
    if stats is None:
        return float("inf"), name
    value = stats.posinf + stats.neginf if column == "inf" else getattr(stats, column)
    value = value / max(stats.count, 1) if column == "zero" else value
    return (float("inf") if value is None else -float(value)), name


def _cells(summary: Summary, *, with_dtype: bool) -> tuple[str, ...]:
    shape = f"{summary.dtype} {dims(summary.shape)}" if with_dtype else dims(summary.shape)
    size = human_bytes(summary.nbytes) if summary.nbytes is not None else "-"
    stats = summary.stats
    if stats is None:
        return (shape, "-", "-", "-", "-", "-", "-", "-", size)
    values = (number(value) for value in (stats.mean, stats.std, stats.min, stats.max))
    bad = (f"{stats.nan:,}", f"{stats.posinf + stats.neginf:,}")
    zero = share(stats.zero, stats.sampled or stats.count) if stats.count else "-"
    return (shape, *values, *bad, zero, size)
