"""Pictures for slides and chats, by matplotlib; its own state and the program's backend stay as they are."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from layerstep.errors import UserError
from layerstep.exports.parts import last_of
from layerstep.registry import export
from layerstep.render.heatmap import block_note, shading_of
from layerstep.render.spelled import spelled_out
from layerstep.views import Plot, View

__all__ = ["write_png"]

COLOURS = ("#0a7ea4", "#a626a4", "#b58900", "#2e8b57", "#3465c8", "#cb4b16")


@export(".png", extra="plots")
def write_png(view: View, path: Path) -> None:
    plot = last_of(view, Plot)
    if plot is None or not any(plot.values):
        raise UserError("no plot was shown last", "a .svg file takes any view")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    plot = spelled_out(plot)
    _draw(plot, figure, axes)
    axes.set_title(_plain(plot.title), loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(_plain(plot.y_label))
    words = (plot.x_label, block_note(plot.cell), plot.note)
    axes.set_xlabel("\n".join(_plain(word) for word in words if word))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks is a box in the picture
        figure.savefig(path, format="png")


def _plain(text: str) -> str:
    """No formulas: matplotlib would set what stands between two dollars."""
    return text.replace("$", r"\$")


def _draw(plot: Plot, figure: Any, axes: Any) -> None:
    if plot.kind == "heatmap":
        _heatmap(plot, figure, axes)
        return
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if plot.kind == "bar" else "y", alpha=0.2)
    axes.set_axisbelow(True)
    rows = [[value if math.isfinite(value) else math.nan for value in row] for row in plot.values]
    first = rows[0]
    if plot.kind == "histogram":
        edges = plot.x if len(plot.x) == len(first) + 1 else range(len(first) + 1)
        axes.stairs(first, edges, fill=True, color=COLOURS[0])
    elif plot.kind == "bar":
        labels = [_plain(plot.labels[i]) if i < len(plot.labels) else str(i) for i in range(len(first))]
        axes.barh(range(len(first)), first, color=[COLOURS[5 if value < 0 else 0] for value in first])
        axes.set_yticks(range(len(first)), labels)
        axes.invert_yaxis()
    else:
        for index, row in enumerate(rows):
            name = _plain(plot.names[index]) if index < len(plot.names) else None
            axes.plot(
                plot.x[: len(row)] or range(len(row)), row, color=COLOURS[index % 6], label=name, lw=1.5
            )
        if plot.names:
            axes.legend(frameon=False)
    if plot.log:
        (axes.set_xscale if plot.kind == "bar" else axes.set_yscale)("log")


def _heatmap(plot: Plot, figure: Any, axes: Any) -> None:
    shading = shading_of(plot)
    assert shading is not None
    matrix = np.array(plot.values, dtype=np.float64)
    colours = "RdBu_r" if shading.diverging else "viridis"
    shape = (len(plot.values) * plot.cell[0], len(plot.values[0]) * plot.cell[1])
    extent = None if plot.names or plot.labels else (-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5)
    image = axes.imshow(
        np.ma.masked_invalid(matrix),
        cmap=colours,
        vmin=shading.low,
        vmax=shading.high,
        aspect="equal" if 0.5 <= shape[1] / shape[0] <= 3 else "auto",
        interpolation="nearest",
        extent=extent,
    )
    axes.patch.set(hatch="xxxx", edgecolor="#888888")  # what is not finite shows through
    if plot.names:
        axes.set_yticks(range(len(plot.names)), list(map(_plain, plot.names)))
    if plot.labels:
        axes.set_xticks(range(len(plot.labels)), list(map(_plain, plot.labels)), rotation=45, ha="right")
    figure.colorbar(image, ax=axes)
