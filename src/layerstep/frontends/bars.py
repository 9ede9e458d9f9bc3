"""Progress bars of the program: taken off the screen for our text, drawn again after it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

__all__ = ["Bars"]


class Bars:
    """tqdm's and rich's bars. Only what the program itself has imported is touched."""

    def __init__(self) -> None:
        self._lives: list[Any] = []

    @property
    def need_lines_below(self) -> bool:
        """Does the program draw below the line of the cursor now? One bar of tqdm keeps to its own line."""
        with contextlib.suppress(Exception):
            return bool(self._rich()) or any(bar.pos for bar in self._tqdm())
        return False

    def clear(self) -> None:
        with contextlib.suppress(Exception):  # a bar must never be the reason that a stop fails
            for bar in self._tqdm():
                bar.clear(nolock=True)
        with contextlib.suppress(Exception):
            for live in self._rich():
                self._hide(live)

    def _hide(self, live: Any) -> None:
        """Erase a display and hold its refreshes. `live.stop()` would end the threads that feed it."""
        if live in self._lives:
            return
        with live._lock:
            live.console.control(live._live_render.position_cursor())
            live.refresh = lambda: None
        self._lives.append(live)

    def draw(self) -> None:
        with contextlib.suppress(Exception):
            for bar in self._tqdm():
                bar.refresh(nolock=True)
        while self._lives:
            with contextlib.suppress(Exception):
                live = self._lives.pop()
                del live.refresh
                live._live_render._shape = None  # nothing of it is on the screen to go back over
                live.refresh()

    @staticmethod
    def _tqdm() -> list[Any]:
        module = sys.modules.get("tqdm.std")
        bars = [bar for bar in getattr(module.tqdm, "_instances", ())] if module is not None else []
        return [bar for bar in bars if not bar.disable]

    @staticmethod
    def _rich() -> list[Any]:
        module = sys.modules.get("rich")
        console = getattr(module, "_console", None)
        stack = getattr(console, "_live_stack", None)
        if stack is None:
            live = getattr(console, "_live", None)
            stack = [live] if live is not None else []
        return [live for live in stack if live.is_started]
