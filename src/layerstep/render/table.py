"""Tables that fit: where the screen is narrow, paths are shortened before anything else is broken."""

from __future__ import annotations

from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text as RichText

from layerstep.views import Table

__all__ = ["TableLines", "shortened"]

GAP = 2
FOLDS_FROM = 24
"""Text wider than this may be folded to let a path stay whole."""
LEAST = 14
"""A path is not cut below this; then the other columns fold, too."""


class TableLines:
    """A table as something rich can print at any width."""

    def __init__(self, view: Table) -> None:
        self.view = view

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(sum(self._widths()) + GAP * len(self.view.columns), options.max_width)
        return Measurement(min(20, width), width)

    def _widths(self) -> list[int]:
        cells = zip(*([column.name for column in self.view.columns], *self.view.rows), strict=True)
        return [max(cell_len(line) for cell in each for line in cell.split("\n")) for each in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self.view
        if view.title:
            yield RichText(view.title, "key")
        room = self._room_for_paths(options.max_width)
        prefix = self._shared_prefix(room)
        if view.rows:
            yield self._table(room, prefix)
        if prefix:
            yield RichText(f"paths are those in {prefix[:-1]}", "dim")
        if view.note:
            yield RichText(view.note, "dim")

    def _table(self, room: int, prefix: str) -> RichTable:
        columns = self.view.columns
        table = RichTable(
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
            header_style="dim",
            show_header=any(column.name for column in columns),
        )
        for column in columns:
            table.add_column(
                column.name,
                style=column.role,
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=column.right,
            )
        for row in self.view.rows:
            cells = [
                shortened(cell.removeprefix(prefix), room) if column.role == "path" else cell
                for column, cell in zip(columns, row, strict=True)
            ]
            table.add_row(*map(RichText, cells))
        return table

    def _shared_prefix(self, room: int) -> str:
        """What all paths begin with, if they are too long to be shown whole."""
        paths = [
            cell
            for row in self.view.rows
            for column, cell in zip(self.view.columns, row, strict=True)
            if column.role == "path"
        ]
        if len(paths) < 2 or max(map(cell_len, paths)) <= room:
            return ""
        pairs = zip(min(paths), max(paths), strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return paths[0][: paths[0].rfind(".", 0, same) + 1]

    def _room_for_paths(self, width: int) -> int:
        """How wide a path may be so that the other columns stay whole."""
        widths = self._widths()
        paths = [i for i, column in enumerate(self.view.columns) if column.role == "path"]
        if not paths:
            return width
        others = [
            size if column.right else min(size, FOLDS_FROM)
            for size, column in zip(widths, self.view.columns, strict=True)
            if column.role != "path"
        ]
        return max((width - sum(others) - GAP * (len(widths) - 1)) // len(paths), LEAST)


def shortened(path: str, room: int) -> str:
    """`h.0…c_attn.weight`: the head and the tail of a path tell it from others, the middle least."""
    if cell_len(path) <= room or "\n" in path:
        return path
    head = path[: room // 3]
    head = head[: head.rindex(".")] if "." in head else head
    return f"{head}…{path[len(head) - room + 1 :]}"
