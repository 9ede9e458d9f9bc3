"""How far a long piece of work has come: one line on a terminal, gone before anything else is said."""

from __future__ import annotations

import contextlib
import sys
from typing import IO

from rich.console import Console

__all__ = ["ProgressLine"]

_ROOM = "\x1bD\x1b[1A"
"""A line below the cursor, which stays where it is: at the bottom the screen moves up."""
_SAVE, _BACK, _ERASE_BELOW = "\x1b7", "\x1b8", "\x1b[J"
_PLAIN = str.maketrans("█░", "#.")


class ProgressLine:
    """Drawn on a terminal only, never in a pipe or on a dumb one.

    It is below the cursor, which does not move: what the program prints stands where it would without it. A
    line that the program ends would begin its next one on top of ours, so ours is erased first.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_drawn = False
        self._watched: list[IO[str]] = []
        """The program's streams whose `write` is ours while the line is drawn."""

    def draw(self, text: str) -> None:
        file = self._console.file
        if not file.isatty() or self._console.is_dumb_terminal:
            return
        self.erase()
        if text:
            fits = _fitting(text, self._console.width - 1)
            try:
                fits.encode(self._console.encoding)
            except UnicodeEncodeError:
                fits = fits.translate(_PLAIN)
            file.write(f"{_ROOM}{_SAVE}\r\n{fits}{_BACK}")
            file.flush()
            self._is_drawn = True
            for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
                self._watch(stream)

    def erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            for stream in self._watched:
                with contextlib.suppress(AttributeError):
                    del stream.write
            self._watched.clear()
            self._console.file.write(_ERASE_BELOW)
            self._console.file.flush()

    def _watch(self, stream: IO[str] | None) -> None:
        """Erase the line before the program ends one of its own on this terminal."""
        with contextlib.suppress(AttributeError, OSError, ValueError):
            if stream is None or "write" in vars(stream) or not stream.isatty():
                return
            write = stream.write

            def erasing(text: str) -> int:
                if self._is_drawn and isinstance(text, str) and "\n" in text:
                    self.erase()
                return write(text)

            stream.write = erasing  # type: ignore[method-assign]
            self._watched.append(stream)


def _fitting(text: str, width: int) -> str:
    """A line that is too long ends behind a whole part; two blanks lie between parts."""
    if len(text) <= width:
        return text
    return text[: text.rfind("  ", 0, width + 2)] if "  " in text[: width + 2] else text[:width]
