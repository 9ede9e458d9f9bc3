"""Labelled values: the label at the left, or above where the screen is too narrow for both."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text as RichText

from layerstep.render.names import shortened_all, wrapped

__all__ = ["FieldLines"]

LONGEST = 32
"""A longer label is shortened, if its value stands at its right."""
LEAST = 28
"""Columns for the values; with fewer, the labels stand above them."""


class FieldLines:
    """Labels and what belongs to them, as something rich can print at any width."""

    def __init__(self, items: Sequence[tuple[str, RenderableType]]) -> None:
        self.items = items

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(20, options.max_width), options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = min(max((cell_len(label) for label, _ in self.items), default=0), LONGEST)
        if longest and options.max_width - longest - 2 < LEAST:
            for label, value in self.items:
                if label:
                    yield RichText("\n".join(wrapped(label, options.max_width)), "dim")
                yield Padding(value, (0, 0, 0, 2))
            return
        shown = shortened_all([label for label, _ in self.items], LONGEST)
        room = options.update_width(max(1, options.max_width - longest - 2))
        for label, value in self.items:
            head = RichText(f"{shown[label]}{' ' * (longest - cell_len(shown[label]))}  ", "dim", end="")
            for line in console.render_lines(value, room, pad=False):
                yield head
                yield from line
                yield Segment.line()
                head = RichText(" " * (longest + 2), end="")
