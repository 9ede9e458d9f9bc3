"""How far a long piece of work has come: one line on a terminal, gone before anything else is said."""

from __future__ import annotations

from rich.console import Console

__all__ = ["ProgressLine"]

_ROOM = "\x1bD\x1b[1A"
"""A line below the cursor, which stays where it is: at the bottom the screen moves up."""
_SAVE, _BACK, _ERASE_BELOW = "\x1b7", "\x1b8", "\x1b[J"
_PLAIN = str.maketrans("█░", "#.")


class ProgressLine:
    """Drawn on a terminal only, never in a pipe or on a dumb one.

    It is below the cursor, which does not move: what the program prints stands where it would without it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_drawn = False

    def draw(self, text: str) -> None:
        file = self._console.file
        if not file.isatty() or self._console.is_dumb_terminal:
            return
        self.erase()
        if text:
            fits = text[: self._console.width - 1]
            try:
                fits.encode(self._console.encoding)
            except UnicodeEncodeError:
                fits = fits.translate(_PLAIN)
            file.write(f"{_ROOM}{_SAVE}\r\n{fits}{_BACK}")
            file.flush()
            self._is_drawn = True

    def erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._console.file.write(_ERASE_BELOW)
            self._console.file.flush()
