"""Plots for a terminal: block and braille characters, legible without colour and at any width.

Here the numbers become places on an axis, and `chart` has plotext draw them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text as RichText

from layerstep.render.canvas import SERIES, Pen, fitted
from layerstep.render.chart import Chart, dot_at, marks_below, room_beside
from layerstep.render.heatmap import draw_heatmap
from layerstep.render.names import shortened_all
from layerstep.render.scale import Scale, count_scale, scale_of
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import number
from layerstep.views import Plot

__all__ = ["Drawing"]

HEIGHT = 10
MOST_BARS = 40
BLOCKS = " ▁▂▃▄▅▆▇█"
PIECES = " ▏▎▍▌▋▊▉█"
MARKERS = "●×○+▲#◇=@%"

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
            yield RichText(plot.note, "dim")


def _histogram(plot: Plot, pen: Pen) -> Lines:
    counts = list(plot.values[0]) if plot.values else []
    scale = count_scale(counts, log=plot.log)
    if scale is None:
        return
    edges = [value for value in plot.x if math.isfinite(value)]
    if len(edges) != len(counts) + 1:
        edges = [float(index) for index in range(len(counts) + 1)]
    room = room_beside(_rungs(scale).values(), pen)
    if len(counts) > room:
        size = -(-len(counts) // room)
        counts = [sum(counts[at : at + size]) for at in range(0, len(counts), size)]
        edges = [*edges[: len(counts) * size : size], edges[-1]]
        scale = count_scale(counts, log=plot.log) or scale
    each = max(1, room // len(counts))
    width = each * len(counts)
    columns = [index * each for index in range(len(counts))] + [width - 1]
    below = marks_below(
        Scale(edges[0], edges[-1]), width, lambda value: round(float(np.interp(value, edges, columns)))
    )
    chart = Chart(pen, (width, HEIGHT), _rungs(scale), below)
    chart.cells(
        [
            (index * each + more, row, block)
            for index, count in enumerate(counts)
            for row, block in enumerate(_column(scale.place(count) if count > 0 else 0.0))
            for more in range(each)
        ],
        colour=SERIES[0],
    )
    yield from _named(plot, pen, chart)


def _rungs(scale: Scale) -> dict[int, str]:
    """Labels of the rows whose upper edge is a round value."""
    return {round(scale.place(value) * HEIGHT) - 1: label for value, label in scale.ticks(5)}


def _column(place: float) -> str:
    """A bar from the bottom up, by eighths of a row; plotext's own bars know halves only.

    What is there is seen, however little.
    """
    eighths = max(1, round(place * HEIGHT * 8)) if place > 0 else 0
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def _line(plot: Plot, pen: Pen) -> Lines:
    scale = scale_of((value for row in plot.values for value in row), log=plot.log)
    if scale is None:
        return
    longest = max(map(len, plot.values))
    x = [float(value) for value in plot.x[:longest] or range(longest)]
    across = scale_of(x) or Scale(0.0, 1.0)
    fine = not pen.ascii_only and (len(plot.values) == 1 or pen.colours > 0)
    wide, high = (2, 4) if fine else (1, 1)
    left = {dot_at(scale.place(value), HEIGHT, high): label for value, label in scale.ticks(5)}
    width = room_beside(left.values(), pen)
    below = marks_below(across, width, lambda value: dot_at(across.place(value), width, wide))
    chart = Chart(pen, (width, HEIGHT), left, below)
    along, left_out = np.array([across.place(value) for value in x]), 0
    for index, row in enumerate(plot.values):
        up = np.array([scale.place(value) for value in row[: len(x)]])
        known = np.isfinite(up + along[: len(up)])
        left_out += int((~known).sum())
        joined = (known[:-1] & known[1:]).any()  # a dot alone is hard to see
        marker = "braille" if fine and joined else MARKERS[index % len(MARKERS)]
        chart.line(along[: len(up)], up, marker=marker, colour=SERIES[index % len(SERIES)])
    if len(plot.values) > 1 or plot.names:
        yield _legend(plot, pen, fine=fine)
    yield from _named(plot, pen, chart)
    if left_out:
        yield pen.words((_gaps(left_out, log=plot.log), "dim"))


def _gaps(count: int, *, log: bool) -> str:
    why = "not finite, or not above zero" if log else "not finite"
    return f"{count:,} value{'' if count == 1 else 's'} left out: {why}"


def _legend(plot: Plot, pen: Pen, *, fine: bool) -> RichText:
    """Above the chart: plotext's own legend covers a part of the lines."""
    names = plot.names or tuple(str(index) for index in range(len(plot.values)))
    parts: list[tuple[str, str]] = []
    for index, name in enumerate(names[: len(plot.values)]):
        mark = "━━" if fine else MARKERS[index % len(MARKERS)]
        parts += [(f"{mark} ", SERIES[index % len(SERIES)]), (f"{name}   ", "")]
    return pen.words(*parts)


def _named(plot: Plot, pen: Pen, chart: Chart) -> Lines:
    """A chart with the names of its axes in words."""
    if plot.y_label:
        yield pen.line((" " * chart.gutter + plot.y_label, "dim"))
    yield from chart.lines()
    if plot.x_label:
        before = chart.gutter + 1 + (chart.width - cell_len(plot.x_label)) // 2
        yield pen.line((" " * max(0, before) + plot.x_label, "dim"))


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
    heads: list[tuple[str, float]] = []
    for label, figure, value in zip(labels, figures, values, strict=True):
        *above, last = shown[label].split("\n")
        heads += [(fitted(line, names + digits + 2), math.nan) for line in above]
        heads.append((f"{fitted(last, names)}  {figure:>{digits}}", value))
    yield from _bars(heads, scale, pen)
    if len(plot.values[0]) > MOST_BARS:
        yield pen.line((f"… {len(plot.values[0]) - MOST_BARS} more", "dim"))


def _bars(heads: list[tuple[str, float]], scale: Scale, pen: Pen) -> Lines:
    """Bars to both sides of zero, each after its name and figure.

    plotext keeps the room for these, but counts a character of two columns as one: they are put in here.
    """
    blank = " " * cell_len(heads[0][0])
    width = room_beside([blank], pen)
    zero = 0 if scale.log else round(scale.place(0.0) * width)
    below = marks_below(scale, width, lambda value: min(width - 1, round(scale.place(value) * width)))
    rows = list(enumerate(value for _, value in reversed(heads)))
    chart = Chart(pen, (width, len(heads)), {row: blank for row, _ in rows}, below)
    for colour, sign in ((SERIES[0], 1), (SERIES[5], -1)):
        chart.cells(
            [
                (column, row, piece)
                for row, value in rows
                if math.isfinite(scale.place(value)) and value * sign > 0
                for column, piece in _pieces(scale.place(value) * width, zero, value)
            ],
            colour=colour,
        )
    lines = chart.lines()
    for line, (head, _) in zip(lines, heads, strict=False):
        yield pen.line(head).append_text(line[len(blank) :])
    yield from lines[len(heads) :]


def _pieces(end: float, zero: int, value: float) -> list[tuple[int, str]]:
    """From the zero line to the value, by eighths of a character to the right, by halves to the left."""
    if value < 0:
        halves = max(1, round((zero - end) * 2))
        bar = ("▐" if halves % 2 else "") + "█" * (halves // 2)
        return list(enumerate(bar, start=zero - len(bar)))
    eighths = max(1, round((end - zero) * 8))
    return list(enumerate("█" * (eighths // 8) + PIECES[eighths % 8].strip(), start=zero))


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
