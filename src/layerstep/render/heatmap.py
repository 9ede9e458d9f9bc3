"""A matrix as a field of characters: shades for what is above zero, strokes for what is below."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np
from rich.cells import cell_len
from rich.text import Text as RichText

from layerstep.render.canvas import Pen, fitted
from layerstep.render.names import shortened_all
from layerstep.render.scale import Scale
from layerstep.tensors.bars import position
from layerstep.tensors.format import number
from layerstep.tensors.pooling import block_means
from layerstep.views import Plot

__all__ = ["Shading", "block_note", "draw_heatmap", "shading_of"]

MOST_ROWS = 32
SHADES = " ░▒▓█"
STROKES = " -=≡≣"
SEQUENTIAL = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
DIVERGING = ((110, 180, 255), (45, 95, 190), (28, 30, 38), (190, 70, 45), (255, 160, 110))

Cell = tuple[str, str]


class Shading:
    """How a value of the matrix is shown: from `low` to `high`, about zero if both signs occur.

    By powers of ten if `least` is given, the smallest size that counts as nonzero.
    """

    def __init__(self, low: float, high: float, *, least: float = 0.0) -> None:
        self.diverging = low < 0 < high or (low < 0 and least > 0)
        if self.diverging:
            high = max(-low, high)
            low = -high
        self.low, self.high, self.least = low, high, least
        self._powers = Scale(least, high, log=True) if 0 < least < high else None

    def place(self, value: float) -> float:
        """From 0 to 1; a half for all if they are all the same."""
        if not self.least:
            return position(value, self.low, self.high) if self.high > self.low else 0.5
        size = 0.0
        if value:
            size = self._powers.place(max(abs(value), self.least)) if self._powers else 1.0
            size = 0.25 + 0.75 * size  # the smallest is seen, too
        return size if not self.diverging else 0.5 + math.copysign(size / 2, value)

    def cell(self, value: float, pen: Pen) -> Cell:
        """A character and its style."""
        if not math.isfinite(value):
            return "✗", "bold red"
        place = self.place(value)
        if pen.colours > 16:
            colour = _mixed(DIVERGING if self.diverging else SEQUENTIAL, place)
            return "█", f"{colour} on {colour}"
        if not self.diverging:
            return SHADES[round(place * 4)], "cyan"
        level = round(place * 8) - 4
        return (SHADES[level], "red") if level >= 0 else (STROKES[-level], "blue")

    def steps(self, count: int) -> list[float]:
        """So many values for the key, from the lowest to the highest."""
        if not self.least:
            half = self.high / 2 - self.low / 2  # 1e308 - -1e308 is no number
            return [self.low + half * 2 * i / (count - 1) for i in range(count)]
        half_count = count // 2 if self.diverging else count
        last = max(half_count - 1, 1)
        ratio = math.log10(self.high / self.least)
        sizes = [self.least * 10 ** (ratio * i / last) for i in range(half_count)]
        return [*(-size for size in reversed(sizes)), 0.0, *sizes] if self.diverging else sizes

    def ends(self) -> tuple[str, str]:
        """The numbers at the two ends of the key."""
        return number(self.low if self.diverging or not self.least else self.least), number(self.high)

    def note(self) -> str:
        if not self.least:
            return ""
        return f"powers of ten, sizes from {number(self.least)} to {number(self.high)}"

    def key(self, pen: Pen, room: int) -> list[Cell]:
        """The scale, from the lowest value to the highest."""
        if self.low == self.high or (self.least and self.least >= self.high):
            return [(f"all {number(self.low)}" if not self.least else f"size {number(self.high)}", "dim")]
        low, high = self.ends()
        count = 24 if pen.colours > 16 else 9 if self.diverging else 5
        count = max(3, min(count, room - len(low) - len(high) - 2))
        cells = [self.cell(value, pen) for value in self.steps(count)]
        return [(f"{low} ", "dim"), *cells, (f" {high}", "dim")]


DECADES = 12
"""By powers of ten, values smaller than this part of the largest are shown as the smallest."""


def shading_of(plot: Plot) -> Shading | None:
    """The scale of a heatmap; None if it has no cells."""
    known = [value for row in plot.values for value in row if math.isfinite(value)]
    if not known:
        return Shading(0.0, 0.0) if any(plot.values) else None
    sizes = [abs(value) for value in known if value] if plot.log else []
    if not sizes:
        return Shading(min(known), max(known))
    return Shading(min(known), max(known), least=max(min(sizes), max(sizes) * 10.0**-DECADES))


def block_note(block: tuple[int, int]) -> str:
    return "" if block == (1, 1) else f"each cell is the mean of {block[0]}×{block[1]}"


def draw_heatmap(plot: Plot, pen: Pen) -> Iterator[RichText]:
    shading = shading_of(plot)
    if shading is None:
        return
    matrix = np.array([row for row in plot.values], dtype=np.float64)
    gutter = _gutter(plot)
    room = max(1, pen.width * 2 // 3, pen.width - gutter - 2)
    gutter = pen.width - room - 2 if gutter + room + 2 > pen.width else gutter
    down, across = -(-len(matrix) // MOST_ROWS), -(-matrix.shape[1] // room)
    with np.errstate(invalid="ignore"):  # an infinity of either sign in one block
        matrix = block_means(matrix, down, across)
    block = (plot.cell[0] * down, plot.cell[1] * across)
    width = _cell_width(plot, room, matrix.shape[1], pooled=across > 1)
    if plot.y_label:
        yield pen.line((" " * (gutter + 1) + plot.y_label, "dim"))
    every = max(1, -(-len(matrix) // 8))
    shown = shortened_all(plot.names, gutter)
    for index, row in enumerate(matrix.tolist()):
        name = _name(plot, index, block[0], down, every)
        name = shown.get(name, name).split("\n")[-1]
        yield pen.line(
            (f"{_right(name, gutter)} │", "dim"), *_runs([shading.cell(v, pen) for v in row], width)
        )
    yield pen.line((f"{' ' * gutter} └{'─' * width * matrix.shape[1]}", "dim"))
    below = _columns(plot, matrix.shape[1], width, block=block[1], pooled=across > 1)
    yield pen.line((" " * (gutter + 2) + below, "dim"))
    if plot.x_label:
        yield pen.line((" " * (gutter + 2) + plot.x_label, "dim"))
    note = block_note(block)
    marked = "✗ not finite" if not np.isfinite(matrix).all() else ""
    words = "   ".join(filter(None, (marked, shading.note(), note)))
    key = pen.line(*shading.key(pen, pen.width))
    indent = " " * (gutter + 2 if gutter + 2 + key.cell_len <= pen.width else 0)
    if words and len(indent) + key.cell_len + 3 + cell_len(words) <= pen.width:
        key, words = key.append(f"   {words}", "dim"), ""
    yield pen.line(indent).append_text(key)
    if words:
        yield pen.words((words, "dim"))


def _gutter(plot: Plot) -> int:
    names = plot.names or (str(max(0, len(plot.values) - 1) * plot.cell[0]),)
    return max(1, max(map(cell_len, names)))


def _cell_width(plot: Plot, room: int, columns: int, *, pooled: bool) -> int:
    """Two characters are about square; more if the columns have labels that fit."""
    wanted = 2
    if plot.labels and not pooled:
        wanted = max(2, min(8, max(map(cell_len, plot.labels)) + 1))
    return max(1, min(wanted, room // columns))


def _name(plot: Plot, index: int, block: int, down: int, every: int) -> str:
    if plot.names and down == 1:
        return plot.names[index] if index < len(plot.names) else ""
    return str(index * block) if index % every == 0 else ""


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + fitted(text, min(width, cell_len(text)))


def _columns(plot: Plot, count: int, width: int, *, block: int, pooled: bool) -> str:
    """Below the columns: their labels if there is room, else the index of some."""
    longest = max(map(cell_len, plot.labels), default=0)
    if plot.labels and not pooled and width > min(longest, 2):
        return "".join(fitted(label, width - 1) + " " for label in plot.labels[:count])
    line, every = "", max(1, -(-10 // width))
    for column in range(0, count, every):
        label = str(column * block)
        at = column * width
        if at >= len(line) + (1 if line else 0) and at + len(label) <= max(count * width, len(label)):
            line = line.ljust(at) + label
    return line


def _runs(cells: list[Cell], width: int) -> list[Cell]:
    return [("".join(c * width if c != "✗" else c.center(width) for c, _ in run), style)
            for style, run in groupby(cells, key=lambda cell: cell[1])]  # fmt: skip


def _mixed(colours: tuple[tuple[int, int, int], ...], place: float) -> str:
    """A colour between two of these."""
    at = min(max(place, 0.0), 1.0) * (len(colours) - 1)
    first = min(int(at), len(colours) - 2)
    red, green, blue = (
        round(a + (b - a) * (at - first)) for a, b in zip(colours[first], colours[first + 1], strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}"
