"""Tables that fit any screen: a number is shown whole, or its column is hidden and named below the table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text as RichText

from layerstep.render.names import longest_number, shortened_all, wrapped
from layerstep.views import Column, Table

__all__ = ["TableLines"]

GAP = 2
FOLDS_FROM = 24
"""Text wider than this is folded so that a path can stay whole."""
FOLDS_TO = 12
"""Text is not folded below this width: then a column is hidden."""
LEAST = 14
"""A path is not cut below this width: then a column is hidden."""


class TableLines:
    """A table as something rich can print at any width."""

    def __init__(self, view: Table) -> None:
        self.view = view
        self._cells = [_Cells(column, [row[i] for row in view.rows]) for i, column in enumerate(view.columns)]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        wanted = sum(cells.widest for cells in self._cells) + GAP * len(self._cells)
        width = min(wanted, options.max_width)
        return Measurement(min(20, width), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self.view
        if view.title:
            yield RichText(view.title, "key")
        gap = 1 if self._fits_only_at(1, options.max_width) else GAP
        shown = self._that_fit(options.max_width, gap)
        widths = _widths(shown, options.max_width - gap * (len(shown) - 1))
        prefix = _shared_prefix(shown, widths)
        if view.rows and shown:
            yield _table(shown, widths, gap=gap, prefix=prefix)
        if prefix:
            yield RichText(f"paths are those in {prefix[:-1]}", "dim")
        hidden = [cells.name(at) for at, cells in enumerate(self._cells) if cells not in shown]
        if hidden and view.rows:
            yield RichText(_hidden_line(hidden), "dim")
        if view.note:
            yield RichText(view.note, "dim")

    def _fits_only_at(self, gap: int, width: int) -> bool:
        """Would narrow gaps save a column from being hidden?"""
        return self._fits(self._cells, width, gap) and not self._fits(self._cells, width, GAP)

    @staticmethod
    def _fits(cells: Sequence[_Cells], width: int, gap: int) -> bool:
        return sum(each.least for each in cells) + gap * (len(cells) - 1) <= width

    def _that_fit(self, width: int, gap: int) -> list[_Cells]:
        """The columns that can be shown: pictures go first, then dim text, numbers, other text."""
        shown = [cells for cells in self._cells if cells.least <= width]
        while len(shown) > 1 and not self._fits(shown, width, gap):
            shown.remove(min(reversed(shown[1:]), key=lambda cells: cells.worth))
        return shown


class _Cells:
    """One column: its cells, how wide they are, and how narrow they can be made."""

    def __init__(self, column: Column, texts: Sequence[str]) -> None:
        self.column, self.texts = column, texts
        self.is_path = column.role == "path"
        lines = [line for text in (column.name, *texts) for line in text.split("\n")]
        self.widest = max(map(cell_len, lines))
        self.least = min(self.widest, self._least())
        is_picture = not column.right and not any(c.isalnum() for text in texts for c in text)
        self.worth = (
            0 if is_picture and any(texts) else 1 if column.role == "dim" else 2 if column.right else 3
        )
        """What has less is hidden first."""

    def _least(self) -> int:
        if self.column.right:
            return self.widest
        if self.is_path:
            return LEAST
        numbers = max(map(longest_number, self.texts), default=0)
        return max(FOLDS_TO, numbers, cell_len(self.column.name))

    def name(self, at: int) -> str:
        return self.column.name or f"column {at + 1}"


def _widths(shown: Sequence[_Cells], room: int) -> list[int]:
    """Text gives way first, so that paths stay whole; what is left over goes to text again."""
    widths = [cells.least for cells in shown]
    left = room - sum(widths)
    folded = [min(cells.widest, max(cells.least, FOLDS_FROM)) for cells in shown]
    paths = [at for at, cells in enumerate(shown) if cells.is_path]
    texts = [at for at, cells in enumerate(shown) if not cells.is_path]
    whole = [cells.widest for cells in shown]
    for columns, wanted in ((paths, folded), (texts, folded), (paths, whole), (texts, whole)):
        while left and (growing := [at for at in columns if widths[at] < wanted[at]]):
            widths[min(growing, key=widths.__getitem__)] += 1
            left -= 1
    return widths


def _table(shown: Sequence[_Cells], widths: Sequence[int], *, gap: int, prefix: str) -> RichTable:
    table = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        header_style="dim",
        show_header=any(cells.column.name for cells in shown),
    )
    filled = []
    for cells, width in zip(shown, widths, strict=True):
        column, texts = cells.column, _fitted(cells, width, prefix)
        lines = [column.name, *(line for text in texts for line in text.split("\n"))]
        table.add_column(
            column.name,
            style=column.role,
            justify="right" if column.right else "left",
            no_wrap=True,
            width=max(map(cell_len, lines)),
        )
        filled.append(texts)
    for row in zip(*filled, strict=True):
        table.add_row(*map(RichText, row))
    return table


def _fitted(cells: _Cells, width: int, prefix: str) -> list[str]:
    if not cells.is_path:
        return ["\n".join(wrapped(text, width)) for text in cells.texts]
    short = [text.removeprefix(prefix) for text in cells.texts]
    shown = shortened_all([line for text in short for line in text.split("\n")], width)
    return ["\n".join(shown[line] for line in text.split("\n")) for text in short]


def _shared_prefix(shown: Sequence[_Cells], widths: Sequence[int]) -> str:
    """What all paths begin with, if they are too long to be shown whole."""
    pairs = [(cells, width) for cells, width in zip(shown, widths, strict=True) if cells.is_path]
    paths = [text for cells, _ in pairs for text in cells.texts]
    if len(paths) < 2 or all(cells.widest <= width for cells, width in pairs):
        return ""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(paths), max(paths), strict=False))
    )
    return paths[0][: paths[0].rfind(".", 0, same) + 1]


def _hidden_line(names: Sequence[str]) -> str:
    count = "1 column is" if len(names) == 1 else f"{len(names)} columns are"
    return f"{count} hidden, the screen is narrow: {', '.join(names)}; `export NAME.json` has all"
