"""Views drawn by matplotlib; its own state and the program's backend stay as they are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from layerstep.render.heatmap import Shading, block_note, shading_of
from layerstep.render.svg import parts_of
from layerstep.views import Plot, View

__all__ = ["figures_of", "saved"]

COLOURS = ("#0a7ea4", "#a626a4", "#b58900", "#2e8b57", "#3465c8", "#cb4b16")
WIDTH, PLOT_HEIGHT, LINE_HEIGHT, MARGIN = 9.0, 4.5, 0.16, 0.3
"""Inches."""
FONT = 8.0
COLUMNS = 100


def figures_of(view: View, *, height: float = math.inf) -> Iterator[Any]:
    """The parts of a view from top to bottom, as figures no taller than `height` inches."""
    page: list[Plot | list[str]] = []
    room = height
    for part in _pieces(view, height):
        if page and _height(part) > room:
            yield _figure(page)
            page, room = [], height
        page.append(part)
        room -= _height(part)
    yield _figure(page)


def _pieces(view: View, height: float) -> Iterator[Plot | list[str]]:
    most = 10_000 if math.isinf(height) else int((height - MARGIN) / LINE_HEIGHT)
    for part in parts_of(view, width=COLUMNS):
        if isinstance(part, Plot):
            yield part
            continue
        for at in range(0, len(part), most):
            yield part[at : at + most]


def _height(part: Plot | list[str]) -> float:
    if isinstance(part, list):
        return len(part) * LINE_HEIGHT + MARGIN
    rows = len(part.values[0]) if part.kind == "bar" and part.values else 0
    return max(PLOT_HEIGHT, min(rows * 0.22, 2 * PLOT_HEIGHT))


def _figure(parts: Sequence[Plot | list[str]]) -> Any:
    from matplotlib.figure import Figure

    heights = [_height(part) for part in parts] or [MARGIN]
    figure = Figure(figsize=(WIDTH, sum(heights)), dpi=150, layout="constrained")
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, part, height in zip(rows, parts, heights, strict=False):
        if isinstance(part, list):
            text, top = _plain("\n".join(part)), 1 - 0.1 / height
            row.text(0.02, top, text, va="top", family="monospace", fontsize=FONT, linespacing=1.3)
        else:
            _draw_plot(part, row, row.add_subplot())
    return figure


def _draw_plot(plot: Plot, figure: Any, axes: Any) -> None:
    axes.set_title(_plain(plot.title), loc="left", fontsize=11, fontweight="bold")
    if not any(plot.values):
        axes.text(0.5, 0.5, "nothing to draw", ha="center")
        axes.set_axis_off()
        return
    shading = shading_of(plot) if plot.kind == "heatmap" else None
    if shading is not None:
        _heatmap(plot, shading, figure, axes)
    else:
        _curves(plot, axes)
    axes.set_ylabel(_plain(plot.y_label))
    notes = (plot.x_label, shading.note() if shading else "", block_note(plot.cell), plot.note)
    axes.set_xlabel("\n".join(_plain(word) for word in notes if word))


def _plain(text: str) -> str:
    """No formulas: matplotlib would set what stands between two dollars."""
    return text.replace("$", r"\$")


def _curves(plot: Plot, axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if plot.kind == "bar" else "y", alpha=0.2)
    axes.set_axisbelow(True)
    rows = [[value if math.isfinite(value) else math.nan for value in row] for row in plot.values]
    draw: dict[str, Callable[[Plot, list[list[float]], Any], None]] = {"histogram": _histogram, "bar": _bars}
    draw.get(plot.kind, _lines)(plot, rows, axes)
    if plot.log:
        (axes.set_xscale if plot.kind == "bar" else axes.set_yscale)("log")


def _histogram(plot: Plot, rows: list[list[float]], axes: Any) -> None:
    counts = rows[0]
    edges = plot.x if len(plot.x) == len(counts) + 1 else range(len(counts) + 1)
    axes.stairs(counts, edges, fill=True, color=COLOURS[0])


def _bars(plot: Plot, rows: list[list[float]], axes: Any) -> None:
    values = rows[0]
    labels = [_plain(plot.labels[i]) if i < len(plot.labels) else str(i) for i in range(len(values))]
    bars = axes.barh(range(len(values)), values, color=[COLOURS[5 if value < 0 else 0] for value in values])
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=FONT)
    axes.set_yticks(range(len(values)), labels)
    axes.invert_yaxis()


def _lines(plot: Plot, rows: list[list[float]], axes: Any) -> None:
    for index, row in enumerate(rows):
        name = _plain(plot.names[index]) if index < len(plot.names) else None
        axes.plot(plot.x[: len(row)] or range(len(row)), row, color=COLOURS[index % 6], label=name, lw=1.5)
    if plot.names:
        axes.legend(frameon=False)


def _heatmap(plot: Plot, shading: Shading, figure: Any, axes: Any) -> None:
    matrix = np.array(plot.values, dtype=np.float64)
    shape = (len(plot.values) * plot.cell[0], len(plot.values[0]) * plot.cell[1])
    extent = None if plot.names or plot.labels else (-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5)
    image = axes.imshow(
        np.ma.masked_invalid(matrix),
        cmap="RdBu_r" if shading.diverging else "viridis",
        norm=_norm(shading),
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


def _norm(shading: Shading) -> Any:
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    if not 0 < shading.least < shading.high:
        return Normalize(shading.low, shading.high)
    if shading.diverging:
        return SymLogNorm(shading.least, vmin=shading.low, vmax=shading.high)
    return LogNorm(shading.least, shading.high, clip=True)


def saved(figure: Any, target: Any, kind: str) -> None:
    """Write a figure to a file; a glyph that the font lacks is a box in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.savefig(target, format=kind)
