"""The axes of a chart and the marks between them, drawn by plotext.

plotext keeps one figure for the whole process, and the program under the debugger may be drawing on it. A
chart therefore has a figure of its own. plotext sees only numbers from 0 to 1 and labels that are ready: its
own axes know neither infinities nor 5e-324.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from rich.color import ANSI_COLOR_NAMES
from rich.text import Text as RichText

from layerstep.render.canvas import Pen
from layerstep.render.scale import Scale

__all__ = ["Chart", "Floats", "dot_at", "marks_below", "room_beside"]

Floats = npt.NDArray[np.float64]
Cell = tuple[int, int, str]
"""Column, row from the bottom, character."""
Mark = tuple[int, str]
"""Column, label."""


def room_beside(labels: Iterable[str], pen: Pen) -> int:
    """How many columns are left for the picture."""
    return max(1, pen.width - _gutter(labels) - 1)


def dot_at(place: float, cells: int, dots: int) -> int:
    """The cell where plotext draws a place from 0 to 1, with so many dots to a cell; it rounds like this."""
    return math.floor(round(0.5 + place * (cells * dots - 1), 8)) // dots


def marks_below(scale: Scale, width: int, column: Callable[[float], int]) -> list[Mark]:
    """Round values below an axis of this width, as many as have room; `column` says where each is."""
    for most in range(max(5, width // 10), 1, -1):
        marks = [(column(value), label) for value, label in scale.ticks(most)]
        if _apart(marks) == marks:
            return marks
    return _apart(marks)


class Chart:
    """A picture of so many columns and rows, with an axis at the left and one below.

    `left` has the label of each row, counted from the bottom; -1 is the axis itself. `below` has the columns
    that have a label, from left to right, as `marks_below` finds them.
    """

    def __init__(
        self, pen: Pen, size: tuple[int, int], left: Mapping[int, str], below: Sequence[Mark]
    ) -> None:
        from plotext import active  # 50 ms, and most sessions draw nothing

        self.pen = pen
        self.width, self.height = size
        self.gutter = _gutter(left.values())
        self._figure = type(active())()
        self._figure._limit_size(False, False)  # or the terminal's size would count
        self._figure.plot_size(self.gutter + 1 + self.width, self.height + 2)
        self._figure.theme("clear")
        self._figure.xaxes(True, False)
        self._figure.yaxes(True, False)
        self._figure.xlim(0, 1)
        self._figure.ylim(0, 1)
        self._figure.yticks([self._up(row) for row in left], [f"{label} " for label in left.values()])
        self._figure.xticks([self._along(column) for column, _ in below], [label for _, label in below])
        self._figure.scatter([], [])  # without it, no labels on an empty chart

    def line(self, x: Floats, y: Floats, *, marker: str, colour: str) -> None:
        """A line through these places, from 0 to 1 on both axes; broken where one is NaN."""
        x, y = _thinned(x, y, self.width * 2)
        known = np.isfinite(x) & np.isfinite(y)
        points = [
            (a, b) if k else (None, None) for a, b, k in zip(x.tolist(), y.tolist(), known, strict=True)
        ]
        if known.any():
            number = ANSI_COLOR_NAMES[colour]
            self._figure.plot(*map(list, zip(*points, strict=True)), marker=marker, color=number)

    def cells(self, cells: Sequence[Cell], *, colour: str) -> None:
        """Single characters at their places."""
        self._figure.scatter(
            [self._along(column) for column, _, _ in cells],
            [self._up(row) for _, row, _ in cells],
            marker=[character for _, _, character in cells],
            color=ANSI_COLOR_NAMES[colour],
        )

    def lines(self) -> list[RichText]:
        """The chart for rich: one text for each line, in the colours of the terminal's own palette."""
        picture = RichText.from_ansi(self._figure.build(), no_wrap=True, overflow="ellipsis")
        lines = []
        for row, line in enumerate(picture.split("\n")[: self.height + 2]):
            line.stylize("dim", 0, self.gutter + 1 if row < self.height else None)
            line.rstrip()
            lines.append(line)
        return lines if lines[-1].plain else lines[:-1]

    def _along(self, column: int) -> float:
        return column / max(1, self.width - 1)

    def _up(self, row: int) -> float:
        return row / max(1, self.height - 1)


def _gutter(labels: Iterable[str]) -> int:
    return max(map(len, labels), default=0) + 1


def _apart(marks: list[Mark]) -> list[Mark]:
    """The marks whose labels have room after the one before.

    plotext moves a label that finds another within its own length, in the order of a set: that differs from
    run to run.
    """
    kept: list[Mark] = []
    for column, label in marks:
        if not kept or column - kept[-1][0] > len(label) + len(kept[-1][1]):
            kept.append((column, label))
    return kept


def _thinned(x: Floats, y: Floats, columns: int) -> tuple[Floats, Floats]:
    """The same picture from fewer points: of those in one column of dots the first, both ends, and the last.

    plotext takes 3 s for 100,000 points. A gap narrower than a column of dots could not be seen anyway.
    """
    if len(x) <= 4 * columns:
        return x, y
    x, y = x[np.isfinite(x)], y[np.isfinite(x)]
    starts = np.flatnonzero(np.diff(np.rint(x * (columns - 1)), prepend=-1))
    lasts = np.append(starts[1:], len(x)) - 1
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    first, last = (np.where(np.isfinite(y[at]), y[at], low) for at in (starts, lasts))
    return np.repeat(x[starts], 4), np.column_stack((first, low, high, last)).ravel()
