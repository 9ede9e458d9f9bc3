"""A view as an SVG picture: one file, no script, no font from elsewhere, for light and dark pages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from xml.etree import ElementTree as XML

import numpy as np

from layerstep.render.heatmap import block_note, shading_of
from layerstep.render.scale import Scale, count_scale, scale_of
from layerstep.render.screen import to_text
from layerstep.render.spelled import spelled_out
from layerstep.tensors.format import number
from layerstep.tensors.pooling import block_means, pooled
from layerstep.views import Group, Plot, View

__all__ = ["parts_of", "to_svg"]

WIDTH, HEIGHT = 720, 300
TOP, RIGHT, BOTTOM = 40, 20, 44
MOST_BARS, MOST_POINTS, MOST_CELLS = 200, 2000, (96, 192)
ROW = 22  # the height of a horizontal bar, and of a line of a legend

_STYLE = """
svg { color: #24292f; background: #ffffff; font: 12px system-ui, sans-serif }
text { fill: currentColor } .dim { opacity: .65 } .title { font-weight: 600; font-size: 14px }
.axis { stroke: currentColor; stroke-opacity: .6 } .grid { stroke: currentColor; stroke-opacity: .12 }
.end { text-anchor: end } .middle { text-anchor: middle } .mono { font: 13px ui-monospace, monospace }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
.s0 { fill: #0a7ea4; stroke: #0a7ea4 } .s1 { fill: #a626a4; stroke: #a626a4 }
.s2 { fill: #b58900; stroke: #b58900 } .s3 { fill: #2e8b57; stroke: #2e8b57 }
.s4 { fill: #3465c8; stroke: #3465c8 } .s5 { fill: #cb4b16; stroke: #cb4b16 }
.bar, .cell, .key { stroke: none } .line { fill: none } .bad { fill: none; stroke: #d1242f }
"""
_DARK = """
@media (prefers-color-scheme: dark) {
svg { color: #e6edf3; background: #0d1117 }
.s0 { fill: #39c5cf; stroke: #39c5cf } .s1 { fill: #d78cf0; stroke: #d78cf0 }
.s2 { fill: #e3b341; stroke: #e3b341 } .s3 { fill: #56d364; stroke: #56d364 }
.s4 { fill: #79a8ff; stroke: #79a8ff } .s5 { fill: #ff8a5c; stroke: #ff8a5c }
.bar, .cell, .key { stroke: none } .line { fill: none } .bad { fill: none; stroke: #ff7b72 }
}
"""
_IN_A_PAGE = f".layerstep-plot {{ {_STYLE} svg {{ color: inherit; background: none; max-width: 100% }} }}"
"""In the colours of the page, and nothing else in it changes. The colours are legible on white and black."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parts_of(view: View, *, width: int = 100) -> list[Plot | list[str]]:
    """The plots of a view, and between them the lines of everything else."""
    parts: list[Plot | list[str]] = []
    rest: list[View] = []
    for each in (*_flat(spelled_out(view)), None):
        if each is not None and not isinstance(each, Plot):
            rest.append(each)
            continue
        if rest:
            parts.append(to_text(Group(tuple(rest)), width=width).splitlines())
            rest = []
        if each is not None:
            parts.append(each)
    return parts


def _flat(view: View) -> list[View]:
    if isinstance(view, Group):
        return [each for part in view.views for each in _flat(part)]
    return [view]


def to_svg(view: View, *, in_a_page: bool = False) -> str:
    """All that the screen shows: plots as pictures, everything else as text, one below the other.

    `in_a_page`: to be put into an element of the class `layerstep-plot`, whose colours it takes.
    """
    picture = _Picture(_IN_A_PAGE if in_a_page else _STYLE + _DARK)
    for part in parts_of(view):
        picture.begin()
        if isinstance(part, Plot):
            _plot(picture, part)
        else:
            _text(picture, part)
        picture.end()
    return picture.written()


def _text(picture: _Picture, lines: Sequence[str]) -> None:
    for row, line in enumerate(lines):
        picture.text(16, 28 + row * 18, line, "mono")
    picture.width, picture.height = 16 + 8 * max(map(len, [*lines, ""])) + 16, 28 + len(lines) * 18


class _Picture:
    """An SVG document in the making; `width` and `height` are those of the part that is drawn."""

    def __init__(self, style: str) -> None:
        self.document = XML.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
        XML.SubElement(self.document, "style").text = style
        self.whole_width, self.whole_height = 0, 0
        self.begin()

    def begin(self) -> None:
        """A part, below those that are there."""
        self.width, self.height = WIDTH, HEIGHT + TOP + BOTTOM
        self.root = XML.Element("g", {"transform": f"translate(0 {self.whole_height})"})

    def end(self) -> None:
        self.document.append(self.root)
        self.whole_width = max(self.whole_width, self.width)
        self.whole_height += self.height

    def add(self, tag: str, kind: str, **attributes: float | str) -> XML.Element:
        plain = {
            name.replace("_", "-"): value
            if isinstance(value, str)
            else f"{value:.2f}".rstrip("0").rstrip(".")
            for name, value in attributes.items()
        }
        return XML.SubElement(self.root, tag, {"class": kind, **plain})

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        element = self.add("text", kind, x=x, y=y)
        element.set("xml:space", "preserve")
        element.text = _NO_XML.sub("�", text)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.add("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, kind: str, box: tuple[float, float, float, float], tip: str, **more: float) -> None:
        element = self.add("rect", kind, x=box[0], y=box[1], width=box[2], height=box[3], **more)
        if tip:
            XML.SubElement(element, "title").text = _NO_XML.sub("�", tip)

    def written(self) -> str:
        self.document.set("viewBox", f"0 0 {self.whole_width} {self.whole_height}")
        self.document.set("width", str(self.whole_width))
        self.document.set("height", str(self.whole_height))
        return XML.tostring(self.document, encoding="unicode") + "\n"


def _plot(picture: _Picture, plot: Plot) -> None:
    plot = _bounded(plot) if plot.kind == "heatmap" else plot
    if plot.title:
        picture.text(16, 24, plot.title, "title")
    if not _KINDS[plot.kind](picture, plot):
        picture.height = TOP + 40
        picture.text(16, TOP + 16, "nothing to draw", "dim")
    words = [block_note(plot.cell), plot.note]
    for line in filter(None, (part for word in words for part in word.splitlines())):
        picture.text(16, picture.height + 4, line, "dim")
        picture.height += 18


def _left(labels: list[str]) -> float:
    """Room for the labels of the vertical axis: a digit is about 7 wide."""
    return 24 + 7.0 * max(map(len, labels), default=0)


def _axes(picture: _Picture, plot: Plot, *, x: Scale, y: Scale) -> tuple[float, float]:
    """Both axes with their ticks; where the picture begins and how wide it is."""
    ticks = y.ticks(5)
    left = _left([label for _, label in ticks])
    width, floor = WIDTH - left - RIGHT, TOP + HEIGHT
    for value, label in ticks:
        at = floor - y.place(value) * HEIGHT
        picture.line(left, at, left + width, at, "grid")
        picture.text(left - 8, at + 4, label, "end dim")
    for value, label in x.ticks(8):
        at = left + x.place(value) * width
        picture.line(at, floor, at, floor + 5, "axis")
        picture.text(at, floor + 20, label, "middle dim")
    picture.line(left, TOP, left, floor, "axis")
    picture.line(left, floor, left + width, floor, "axis")
    picture.text(left + width / 2, floor + 38, plot.x_label, "middle")
    picture.text(left, TOP - 6, plot.y_label, "dim")
    picture.height = TOP + HEIGHT + BOTTOM + (14 if plot.x_label else 0)
    return left, width


def _histogram(picture: _Picture, plot: Plot) -> bool:
    counts = plot.values[0] if plot.values else ()
    scale = count_scale(counts, log=plot.log)
    if scale is None:
        return False
    edges = plot.x if len(plot.x) == len(counts) + 1 else tuple(map(float, range(len(counts) + 1)))
    across = Scale(edges[0], edges[-1])
    left, width = _axes(picture, plot, x=across, y=scale)
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        start, end = (left + across.place(edge) * width for edge in (low, high))
        tall = scale.place(count) * HEIGHT if count > 0 else 0.0
        box = (start, TOP + HEIGHT - tall, max(end - start - 1, 0.5), tall)
        picture.rect("bar s0", box, f"{number(low)} to {number(high)}: {count:,.0f}")
    return True


def _line(picture: _Picture, plot: Plot) -> bool:
    scale = scale_of((value for row in plot.values for value in row), log=plot.log)
    if scale is None:
        return False
    longest = max(map(len, plot.values))
    x = plot.x[:longest] or tuple(map(float, range(longest)))
    across = scale_of(x) or Scale(0.0, 1.0)
    left, width = _axes(picture, plot, x=across, y=scale)
    for index, row in enumerate(plot.values):
        places = [(left + across.place(a) * width, TOP + HEIGHT * (1 - scale.place(b))) for a, b in
                  zip(x, row, strict=False)]  # fmt: skip
        picture.add("path", f"line s{index % 6}", d=_path(places))
    for index, name in enumerate(plot.names[: len(plot.values)]):
        at = TOP + 12 + index * ROW
        picture.line(WIDTH - 150, at - 4, WIDTH - 130, at - 4, f"line s{index % 6}")
        picture.text(WIDTH - 122, at, name)
    return True


def _path(places: list[tuple[float, float]]) -> str:
    """The points joined, in pieces where one is missing; a lone one is a dot."""
    pieces: list[list[str]] = [[]]
    for x, y in places:
        if math.isfinite(x) and math.isfinite(y):
            pieces[-1].append(f"{x:.1f},{y:.1f}")
        elif pieces[-1]:
            pieces.append([])
    return " ".join(f"M{piece[0]} L{' '.join(piece[1:] or piece)}" for piece in pieces if piece)


def _bar(picture: _Picture, plot: Plot) -> bool:
    values = plot.values[0][:MOST_BARS] if plot.values else ()
    scale = scale_of(values, log=plot.log, zero=True)
    if scale is None:
        return False
    labels = [plot.labels[i] if i < len(plot.labels) else str(i) for i in range(len(values))]
    left = min(_left(labels), WIDTH / 2)
    width = WIDTH - left - RIGHT - 60
    zero = left if plot.log else left + scale.place(0.0) * width
    for row, (label, value) in enumerate(zip(labels, values, strict=True)):
        top, place = TOP + row * ROW, scale.place(value)
        end = zero if math.isnan(place) else left + place * width
        picture.text(left - 8, top + 14, label, "end")
        box = (min(zero, end), top + 3, abs(end - zero), ROW - 7)
        picture.rect("bar s5" if value < 0 else "bar s0", box, f"{label}: {number(value)}")
        picture.text(max(zero, end) + 6, top + 14, number(value), "dim")
    picture.line(zero, TOP, zero, TOP + len(values) * ROW, "axis")
    picture.height = TOP + len(values) * ROW + 24
    if len(plot.values[0]) > MOST_BARS:
        picture.text(left, picture.height, f"… {len(plot.values[0]) - MOST_BARS} more", "dim")
        picture.height += 20
    return True


def _heatmap(picture: _Picture, plot: Plot) -> bool:
    shading = shading_of(plot)
    if shading is None:
        return False
    columns = max(map(len, plot.values))
    left = min(_left([*plot.names, str(len(plot.values) * plot.cell[0])]), WIDTH / 3)
    size = min(36.0, (WIDTH - left - RIGHT) / columns)
    tall = max(size, 8.0) if columns > 1 else 24.0
    for row, values in enumerate(plot.values):
        for column, value in enumerate(values):
            box = (left + column * size, TOP + row * tall, size, tall)
            tip = f"[{row * plot.cell[0]}, {column * plot.cell[1]}]: {number(value)}"
            place = shading.place(value) if math.isfinite(value) else math.nan
            _cell(picture, box, tip, place=place, diverging=shading.diverging)
    floor = TOP + len(plot.values) * tall
    _headings(picture, plot, left, size, tall)
    picture.height = round(floor + (60 if plot.x_label else 44))
    picture.text(left, floor + 34, plot.x_label)
    picture.text(left, TOP - 6, plot.y_label, "dim")
    low, high = shading.ends()
    picture.text(left, picture.height, low, "dim")
    start = left + 8 + 7 * len(low)
    steps = shading.steps(21)
    for step, value in enumerate(steps):
        box = (start + step * 8, picture.height - 10, 8.0, 12.0)
        tip = number(value)
        _cell(picture, box, tip, place=shading.place(value), diverging=shading.diverging, kind="key")
    picture.text(start + len(steps) * 8 + 8, picture.height, f"{high}  {shading.note()}".rstrip(), "dim")
    picture.height += 20
    return True


def _bounded(plot: Plot) -> Plot:
    """No more cells than a page can hold."""
    if not any(plot.values):
        return plot
    matrix = np.array(plot.values, dtype=np.float64)
    down, across = (-(-size // most) for size, most in zip(matrix.shape, MOST_CELLS, strict=True))
    if down == across == 1:
        return plot
    with np.errstate(invalid="ignore"):  # an infinity of either sign in one block
        rows = tuple(tuple(row) for row in block_means(matrix, down, across).tolist())
    names, labels = plot.names if down == 1 else (), plot.labels if across == 1 else ()
    cell = (plot.cell[0] * down, plot.cell[1] * across)
    return replace(plot, values=rows, names=names, labels=labels, cell=cell)


def _headings(picture: _Picture, plot: Plot, left: float, size: float, tall: float) -> None:
    """Names or numbers of the rows and columns, as many as do not touch."""
    count, columns = len(plot.values), max(map(len, plot.values))
    every = 1 if tall >= 11 else -(-14 // int(tall))
    for row in range(0, count, every):
        name = plot.names[row] if row < len(plot.names) else str(row * plot.cell[0])
        picture.text(left - 8, TOP + (row + 0.5) * tall + 4, name, "end dim")
    labels = [plot.labels[i] if i < len(plot.labels) else str(i * plot.cell[1]) for i in range(columns)]
    least = (7 * max(map(len, labels)) + 6) / size
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, columns) if step >= min(least, columns))
    for column in range(0, columns, every):
        at = left + (column + 0.5) * size
        picture.text(at, TOP + count * tall + 16, labels[column], "middle dim")


def _cell(
    picture: _Picture,
    box: tuple[float, float, float, float],
    tip: str,
    *,
    place: float,
    diverging: bool,
    kind: str = "cell",
) -> None:
    """A value by how opaque its cell is, so that it shows on light and dark; a cross if it is not finite."""
    if math.isnan(place):
        picture.rect(f"{kind} bad", box, tip)
        x, y, wide, tall = box
        picture.line(x + 2, y + 2, x + wide - 2, y + tall - 2, "bad")
        picture.line(x + 2, y + tall - 2, x + wide - 2, y + 2, "bad")
        return
    weight = abs(place - 0.5) * 2 if diverging else place
    colour = "s5" if diverging and place > 0.5 else "s4" if diverging else "s0"
    picture.rect(f"{kind} {colour}", box, tip, fill_opacity=0.04 + 0.96 * weight)


def _sparkline(picture: _Picture, plot: Plot) -> bool:
    values = tuple(pooled(plot.values[0], MOST_POINTS)) if plot.values else ()
    scale = scale_of(values)
    if scale is None:
        return False
    last = max(1, len(values) - 1)
    places = [(16 + 440 * i / last, TOP + 40 * (1 - scale.place(v))) for i, v in enumerate(values)]
    picture.add("path", "line s0", d=_path(places))
    known = [value for value in plot.values[0] if math.isfinite(value)]
    figures = f"min {number(min(known))}  max {number(max(known))}  last {number(plot.values[0][-1])}"
    picture.text(472, TOP + 24, figures, "dim")
    picture.height = TOP + 60
    return True


_KINDS: dict[str, Callable[[_Picture, Plot], bool]] = {
    "histogram": _histogram,
    "line": _line,
    "bar": _bar,
    "heatmap": _heatmap,
    "sparkline": _sparkline,
}
