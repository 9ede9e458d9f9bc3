"""Tracebacks of the program while the prompt is open: it makes room, so that each is in one piece.

A thread may raise while another one stands at the prompt. Python writes a traceback line by line: the prompt
could stand before the first line, or be drawn between two of them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from prompt_toolkit.application import Application, run_in_terminal

__all__ = ["Tracebacks"]

MOST_SECONDS = 2.0
"""A hook of the program may hang: after this time neither the prompt nor the program waits for the other."""


class Tracebacks:
    """Stands in for the hooks that show exceptions, from one stop to its end."""

    def __init__(self, app: Application[str]) -> None:
        self._app = app
        self._lock = threading.RLock()
        """Held by a thread that writes a traceback while no prompt is drawn."""
        self._is_drawn = False
        self._replaced: list[tuple[Any, Callable[..., None], Callable[..., None]]] = []

    def watch(self) -> None:
        """Take the place of the hooks."""
        if not self._replaced:
            modules: tuple[Any, ...] = (sys, threading)
            for module in modules:
                before = module.excepthook
                hook = self._in_one_piece(before)
                module.excepthook = hook
                self._replaced.append((module, before, hook))

    def leave(self) -> None:
        """Put the hooks back, but for one that the program has replaced meanwhile."""
        while self._replaced:
            module, before, hook = self._replaced.pop()
            if module.excepthook is hook:
                module.excepthook = before

    def prompt_opens(self) -> None:
        """Let a traceback that is being written end before the prompt is drawn."""
        with self._alone():
            self._is_drawn = True

    def prompt_closed(self) -> None:
        self._is_drawn = False

    def _in_one_piece(self, before: Callable[..., None]) -> Callable[..., None]:
        def hook(*exception: Any) -> None:
            with self._room():
                before(*exception)

        return hook

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        has_lock = self._lock.acquire(timeout=MOST_SECONDS)
        try:
            yield
        finally:
            if has_lock:
                self._lock.release()

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        with self._alone():
            if not self._is_drawn:
                yield
                return
        is_away, is_written = threading.Event(), threading.Event()

        def wait_aside() -> None:
            is_away.set()
            is_written.wait(MOST_SECONDS)

        loop, context = self._app.loop, self._app.context
        with contextlib.suppress(RuntimeError):  # the prompt has just been closed
            if loop is not None:
                loop.call_soon_threadsafe(lambda: run_in_terminal(wait_aside), context=context)
                is_away.wait(MOST_SECONDS)
        try:
            yield
        finally:
            is_written.set()
