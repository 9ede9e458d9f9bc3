"""The numbers of a plot, or the rows of a table, for a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from layerstep.errors import UserError
from layerstep.exports.parts import last_of
from layerstep.registry import export
from layerstep.views import Plot, Table, View

__all__ = ["write_csv"]

Row = Iterable[Any]


@export(".csv")
def write_csv(view: View, path: Path) -> None:
    part = last_of(view, Plot) or last_of(view, Table)
    if part is None:
        raise UserError("no plot and no table was shown last", "a .json file takes any view")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(_table(part) if isinstance(part, Table) else _plot(part))


def _table(table: Table) -> Iterable[Row]:
    yield [column.name for column in table.columns]
    yield from table.rows


def _plot(plot: Plot) -> Iterable[Row]:
    first = plot.values[0] if plot.values else ()
    longest = max(map(len, plot.values), default=0)
    match plot.kind:
        case "histogram":
            yield ("from", "to", "count")
            yield from zip(plot.x, plot.x[1:], first, strict=False)
        case "line":
            yield (plot.x_label or "x", *(_named(plot.names, i) for i in range(len(plot.values))))
            yield from zip_longest(plot.x[:longest] or range(longest), *plot.values, fillvalue="")
        case "heatmap":
            yield ("", *(_named(plot.labels, i, plot.cell[1]) for i in range(longest)))
            yield from ((_named(plot.names, i, plot.cell[0]), *row) for i, row in enumerate(plot.values))
        case "bar" | "sparkline":
            yield ("label", "value")
            yield from ((_named(plot.labels, i), value) for i, value in enumerate(first))


def _named(names: tuple[str, ...], index: int, size: int = 1) -> str:
    return names[index] if index < len(names) else str(index * size)
