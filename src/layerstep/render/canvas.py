"""What a console can show of a plot: its width, its colours, and whether it knows more than ASCII."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text as RichText

__all__ = ["SERIES", "Pen", "fitted"]

SERIES = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""The colours of lines, in turn; all six are legible on black and on white."""


@dataclass(frozen=True, slots=True)
class Pen:
    """How to draw on one console."""

    width: int
    ascii_only: bool
    colours: int
    """0, 16 or more."""

    @staticmethod
    def of(console: Console, options: ConsoleOptions) -> Pen:
        systems = {"standard": 16, "windows": 16, "256": 256, "truecolor": 1 << 24}
        colours = 0 if console.no_color else systems.get(console.color_system or "", 0)
        return Pen(max(options.max_width, 1), options.ascii_only, colours)

    def line(self, *parts: str | tuple[str, str]) -> RichText:
        """One line that is never torn."""
        return RichText.assemble(*parts, no_wrap=True, overflow="ellipsis")

    def words(self, *parts: str | tuple[str, str]) -> RichText:
        """Text that goes on in the next line where it is too long."""
        line = self.line(*parts)
        line.no_wrap, line.overflow = False, "fold"
        return line


def fitted(text: str, width: int) -> str:
    """Exactly so many columns: padded, or without its beginning, since the end of a path says more."""
    text = " ".join(text.split())
    if cell_len(text) > width:
        while text and cell_len(text) > width - 1:
            text = text[1:]
        text = "…" + text if width else ""
    return set_cell_size(text, width)
