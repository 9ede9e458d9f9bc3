"""Plots for a terminal: block and braille characters, legible without colour and at any width.

Drawn here and not by a library: plotext 6.1 was tried, and ends the whole process (`std::bad_alloc` in its
C++ part, which nothing can catch) when a line has a NaN in it. A debugger meets those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text as RichText

from layerstep.render.canvas import SERIES, Pen, fitted
from layerstep.render.heatmap import draw_heatmap
from layerstep.render.names import shortened_all
from layerstep.render.scale import Scale, count_scale, scale_of
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import number
from layerstep.views import Plot

__all__ = ["Drawing"]

HEIGHT = 10
MOST_BARS = 40
CHUNK = 4096  # segments of a line drawn at a time: each is up to 40 dots
BLOCKS = " ▁▂▃▄▅▆▇█"
PIECES = " ▏▎▍▌▋▊▉█"
MARKERS = "●×○+*#"
BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])

Lines = Iterator[RichText]


class Drawing:
    """A plot as something rich can print at any width."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(20, options.max_width), options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plot, pen = self.plot, Pen.of(console, options)
        if plot.title and plot.kind != "sparkline":
            yield pen.words((plot.title, "key"))
        lines = list(_KINDS[plot.kind](plot, pen))
        yield from lines or [pen.line(("nothing to draw", "dim"))]
        if plot.note:
            yield RichText(pen.text(plot.note), "dim")


def _histogram(plot: Plot, pen: Pen) -> Lines:
    counts = list(plot.values[0]) if plot.values else []
    scale = count_scale(counts, log=plot.log)
    if scale is None:
        return
    left = {HEIGHT - round(scale.place(value) * HEIGHT): label for value, label in scale.ticks(5)}
    width = _room(left, pen)
    edges = list(plot.x) if len(plot.x) == len(counts) + 1 else [float(i) for i in range(len(counts) + 1)]
    if len(counts) > width:
        size = -(-len(counts) // width)
        counts = [sum(counts[at : at + size]) for at in range(0, len(counts), size)]
        edges = [*edges[: len(counts) * size : size], edges[-1]]
        scale = count_scale(counts, log=plot.log) or scale
        left = {HEIGHT - round(scale.place(value) * HEIGHT): label for value, label in scale.ticks(5)}
    each = max(1, width // len(counts))
    heights = [_eighths(scale.place(count) if count > 0 else 0.0) for count in counts]
    rows = ["".join(BLOCKS[min(max(h - 8 * below, 0), 8)] * each for h in heights) for below in range(HEIGHT)]
    body = [pen.line((row, SERIES[0])) for row in reversed(rows)]
    columns = [index * each for index in range(len(counts))] + [len(counts) * each - 1]
    axis = Scale(edges[0], edges[-1]).ticks(max(2, len(counts) * each // 12))
    marks = [(round(float(np.interp(value, edges, columns))), label) for value, label in axis]
    yield from _framed(pen, body, left, marks, names=(plot.y_label, plot.x_label))


def _eighths(place: float) -> int:
    """The height of a bar; what is there is seen, however little."""
    return max(1, round(place * HEIGHT * 8)) if place > 0 else 0


def _line(plot: Plot, pen: Pen) -> Lines:
    rows = [np.asarray(row, dtype=np.float64) for row in plot.values]
    scale = scale_of((value for row in plot.values for value in row), log=plot.log)
    if scale is None:
        return
    longest = max(len(row) for row in rows)
    x = np.asarray(plot.x[:longest] or range(longest), dtype=np.float64)
    across = scale_of(x.tolist()) or Scale(0.0, 1.0)
    left = {round((1 - scale.place(value)) * (HEIGHT - 1)): label for value, label in scale.ticks(5)}
    width = _room(left, pen)
    fine = not pen.ascii_only and (len(rows) == 1 or pen.colours > 0)
    wide, high = (2, 4) if fine else (1, 1)
    places = [across.place(value) for value in x.tolist()]
    grids = [
        _dots(places, [scale.place(value) for value in row.tolist()], width * wide, HEIGHT * high)
        for row in rows
    ]
    if len(rows) > 1 or plot.names:
        yield _legend(plot, pen, fine=fine)
    axis = [(across.place(value), label) for value, label in across.ticks(max(2, width // 12))]
    marks = [(round(place * (width - 1)), label) for place, label in axis]
    yield from _framed(pen, _inked(grids, pen, fine=fine), left, marks, names=(plot.y_label, plot.x_label))


def _dots(x: Sequence[float], y: Sequence[float], width: int, height: int) -> npt.NDArray[np.bool_]:
    """A line on a grid of dots, broken where a point has no place."""
    grid = np.zeros((height, width), dtype=np.bool_)
    points = np.array(list(zip(x, y, strict=False)), dtype=np.float64).reshape(-1, 2)
    points = np.column_stack([points[:, 0] * (width - 1), (1 - points[:, 1]) * (height - 1)])
    known = np.isfinite(points[:, 0]) & np.isfinite(points[:, 1])
    column, row = np.rint(points[known]).astype(int).T
    grid[row, column] = True
    joined = known[:-1] & known[1:]
    starts, ends = points[:-1][joined], points[1:][joined]
    for at in range(0, len(starts), CHUNK):
        start, end = starts[at : at + CHUNK], ends[at : at + CHUNK]
        steps = np.ceil(np.abs(end - start).max(axis=1, initial=0)).astype(int) + 1
        which = np.repeat(np.arange(len(steps)), steps)
        done = (np.arange(len(which)) - (np.cumsum(steps) - steps)[which]) / steps[which]
        column, row = np.rint(start[which] + (end - start)[which] * done[:, None]).astype(int).T
        grid[row, column] = True
    return grid


def _inked(grids: list[npt.NDArray[np.bool_]], pen: Pen, *, fine: bool) -> list[RichText]:
    """Dots as characters: eight to a braille cell, or a marker for each line."""
    lines = []
    for row in range(HEIGHT):
        cells: list[tuple[str, str]] = []
        for column in range(grids[0].shape[1] // (2 if fine else 1)):
            cells.append(_cell(grids, row, column, fine=fine))
        runs = [
            ("".join(c for c, _ in run), style) for style, run in groupby(cells, key=lambda cell: cell[1])
        ]
        lines.append(pen.line(*runs))
    return lines


def _cell(grids: list[npt.NDArray[np.bool_]], row: int, column: int, *, fine: bool) -> tuple[str, str]:
    bits, last = 0, None
    for index, grid in enumerate(grids):
        part = grid[row * 4 : row * 4 + 4, column * 2 : column * 2 + 2] if fine else grid[row, column]
        if part.any():
            last = index
            bits |= int(BRAILLE[part].sum()) if fine else 0
    if last is None:
        return " ", ""
    return chr(0x2800 + bits) if fine else MARKERS[last % 6], SERIES[last % 6]


def _legend(plot: Plot, pen: Pen, *, fine: bool) -> RichText:
    names = plot.names or tuple(str(index) for index in range(len(plot.values)))
    parts: list[tuple[str, str]] = []
    for index, name in enumerate(names[: len(plot.values)]):
        parts += [("━━ " if fine else f"{MARKERS[index % 6]} ", SERIES[index % 6]), (f"{name}   ", "")]
    return pen.words(*parts)


def _room(left: dict[int, str], pen: Pen) -> int:
    return max(1, pen.width - max(map(len, left.values())) - 2)


def _framed(
    pen: Pen,
    body: list[RichText],
    left: dict[int, str],
    marks: list[tuple[int, str]],
    *,
    names: tuple[str, str],
) -> Lines:
    """A picture with its two axes: labels by row at the left, by column below, the names of both in words."""
    gutter, width = max(map(len, left.values())), max(line.cell_len for line in body)
    if names[0]:
        yield pen.line((" " * (gutter + 1) + names[0], "dim"))
    for row, line in enumerate(body):
        label = left.get(row, "")
        yield pen.line((f"{label:>{gutter}} {'┤' if label else '│'}", "dim")).append_text(line)
    columns = {column for column, _ in marks}
    axis = "".join("┬" if column in columns else "─" for column in range(width))
    yield pen.line((f"{left.get(len(body), ''):>{gutter}} └{axis}", "dim"))
    yield pen.line((_spread([(gutter + 2 + column, label) for column, label in marks], pen.width), "dim"))
    if names[1]:
        yield pen.line((" " * max(0, gutter + 2 + (width - cell_len(names[1])) // 2) + names[1], "dim"))


def _spread(marks: list[tuple[int, str]], width: int) -> str:
    """Labels under their columns; one that would touch its neighbour is left out."""
    line = ""
    for column, label in marks:
        at = min(max(0, column - len(label) // 2), max(0, width - len(label)))
        if at >= len(line) + (2 if line else 0):
            line = line.ljust(at) + label
    return line


def _bar(plot: Plot, pen: Pen) -> Lines:
    values = plot.values[0][:MOST_BARS] if plot.values else ()
    scale = scale_of(values, log=plot.log, zero=True)
    if scale is None:
        return
    labels = [plot.labels[i] if i < len(plot.labels) else str(i) for i in range(len(values))]
    names = min(max(map(cell_len, labels)), max(8, pen.width * 2 // 5))
    shown = shortened_all(labels, names)
    figures = [number(value) for value in values]
    digits = max(map(len, figures))
    room = max(1, pen.width - names - digits - 3)
    zero = 0 if plot.log else round(scale.place(0.0) * room)
    for label, figure, value in zip(labels, figures, values, strict=True):
        place = scale.place(value)
        bar = "" if math.isnan(place) else _bar_text(place * room, zero, value)
        colour = SERIES[5] if value < 0 else SERIES[0]
        *above, last = shown[label].split("\n")
        yield from (pen.line(line) for line in above)
        yield pen.line(fitted(last, names), f"  {figure:>{digits}} ", (bar, colour))
    if len(plot.values[0]) > MOST_BARS:
        yield pen.line((f"… {len(plot.values[0]) - MOST_BARS} more", "dim"))


def _bar_text(end: float, zero: int, value: float) -> str:
    """From the zero line to the value, by eighths of a character to the right, by halves to the left."""
    if not value:
        return ""
    if value < 0:
        halves = max(1, round((zero - end) * 2))
        bar = ("▐" if halves % 2 else "") + "█" * (halves // 2)
        return bar.rjust(zero)
    eighths = max(1, round((end - zero) * 8))
    return " " * zero + "█" * (eighths // 8) + PIECES[eighths % 8].strip()


def _sparkline(plot: Plot, pen: Pen) -> Lines:
    values = plot.values[0] if plot.values else ()
    known = [value for value in values if math.isfinite(value)]
    head = f"{plot.title}  " if plot.title else ""
    if not known:
        yield pen.line((head, "key"), ("nothing to draw", "dim"))
        return
    tail = f"  min {number(min(known))} max {number(max(known))} last {number(values[-1])}"
    room = pen.width - cell_len(head) - len(tail)
    if room >= 8:
        yield pen.line((head, "key"), (sparkline(values, width=room), SERIES[0]), (tail, "dim"))
        return
    yield pen.words((head.rstrip(), "key"))
    yield pen.line((sparkline(values, width=pen.width), SERIES[0]))
    yield pen.words((tail.strip(), "dim"))


_KINDS: dict[str, Callable[[Plot, Pen], Any]] = {
    "histogram": _histogram,
    "line": _line,
    "bar": _bar,
    "heatmap": draw_heatmap,
    "sparkline": _sparkline,
}
