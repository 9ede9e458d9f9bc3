from __future__ import annotations

import math
from collections.abc import Callable

from layerstep.arguments import Choice, Given, Option, Where
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.layers.activations import Activation, measure_activation, remarks
from layerstep.layers.calls import layers_in_view
from layerstep.layers.weights import histogram
from layerstep.registry import command
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import dims, human_bytes, number, share
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Figure, Table

MOST_REMARKS = 8

_KEYS: dict[str, Callable[[Activation], float | None]] = {
    "mean": lambda one: one.summary.stats.mean if one.summary.stats else None,
    "std": lambda one: one.summary.stats.std if one.summary.stats else None,
    "zero": lambda one: (
        one.summary.stats.zero / max(1, one.summary.stats.count) if one.summary.stats else None
    ),
    "dead": lambda one: _of_units(one, one.dead),
    "constant": lambda one: _of_units(one, one.constant),
    "saturated": lambda one: one.saturated,
    "outliers": lambda one: float(len(one.outliers)),
    "bytes": lambda one: one.summary.nbytes,
}
"""The columns one can sort by, the largest first."""


@command(
    "activations",
    group="look",
    args=(
        Where(optional=True),
        Option("sort", Choice("COLUMN", of=tuple(_KEYS)), "puts the largest of a column first"),
    ),
    examples=("activations", "activations ** --sort std", "activations type:RMSNorm --sort dead"),
)
def activations(session: Session, given: Given) -> Table:
    """Compare the outputs of the layers in view.

    A layer is in view if you stepped through it or stopped at it in this forward, or if `record --tensors`
    keeps it. A unit is a channel of a convolution or a feature of the last dimension. A dead unit is zero at
    every position; a constant one has another value that never changes. Both need at least 16 positions.
    Saturated is the share of a bounded output that is beyond 0.99. Outliers are units whose largest value is
    more than 6 robust sigmas above that of the others. Columns that would only hold zeros are left out.
    COLUMN is one of mean, std, zero, dead, constant, saturated, outliers, bytes; the largest come first.
    """
    where, sort = given.where or "**", given.sort
    measured = [
        (layer.path, measure_activation(leaves[0][1], layer.module), sparkline(histogram(leaves[0][1])))
        for layer in layers_in_view(session, where)
        if (leaves := tensors_in(layer.output, most=1))
    ]
    if not measured:
        raise UserError(f"no output of {where} has a tensor in it")
    if sort:
        measured.sort(key=lambda row: _rank(_KEYS[sort](row[1])))
    most = max(1, session.run.config.max_lines - 2 * MOST_REMARKS)
    rows = [_row(*row) for row in measured[:most]]
    shown = [
        at for at, column in enumerate(_COLUMNS) if _says_something(column.name, [row[at] for row in rows])
    ]
    return Table(
        tuple(_COLUMNS[at] for at in shown),
        tuple(tuple(row[at] for at in shown) for row in rows),
        note="\n".join(_notes([row[:2] for row in measured], most)),
    )


def _says_something(name: str, cells: list[str]) -> bool:
    """Most layers have nothing in these columns; on a terminal there is room for them when they have."""
    return name not in ("constant", "saturated", "outliers") or any(
        cell not in ("-", "0", "0%") for cell in cells
    )


def _rank(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else -value


def _of_units(one: Activation, count: int | None) -> float | None:
    return count / one.units if count is not None and one.units else None


def _notes(measured: list[tuple[str, Activation]], most: int) -> list[str]:
    """What is odd, then what was left out, each bounded."""
    found = remarks(measured)
    if len(found) > MOST_REMARKS:
        found = [*found[: MOST_REMARKS - 1], f"{len(found) - MOST_REMARKS + 1} more layers with remarks"]
    if len(measured) > most:
        found.append(f"{len(measured) - most} more layers; a narrower WHERE shows them")
    notes: dict[str, list[str]] = {}
    for path, one in measured:
        if one.note:
            notes.setdefault(one.note, []).append(path)
    return found + [
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {note}"
        for note, paths in list(notes.items())[:4]
    ]


_COLUMNS = (
    Column("layer", "path"),
    Column("shape"),
    Column("mean", right=True),
    Column("std", right=True),
    Column("zero", right=True),
    Column("dead", right=True),
    Column("constant", right=True),
    Column("saturated", right=True),
    Column("outliers", right=True),
    Column("bytes", right=True),
    Column("values"),
)


def _row(path: str, one: Activation, bars: str) -> tuple[str, ...]:
    stats, units = one.summary.stats, one.units or 0
    return (
        path,
        dims(one.summary.shape),
        number(stats.mean if stats else None),
        number(stats.std if stats else None),
        share(stats.zero, stats.count) if stats and stats.count else "-",
        *(
            "-" if count is None else Figure(f"{count}/{units}" if count else "0", count)
            for count in (one.dead, one.constant)
        ),
        "-" if one.saturated is None else Figure(f"{one.saturated:.0%}", 100 * one.saturated, "%"),
        str(len(one.outliers)) if one.outliers else "-" if one.units is None else "0",
        human_bytes(one.summary.nbytes) if one.summary.nbytes is not None else "-",
        bars,
    )
