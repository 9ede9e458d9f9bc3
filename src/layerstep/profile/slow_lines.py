"""Which lines of the program take the time: a thread samples where another one is."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

import torch.utils.data

from layerstep.calls.operations import Place
from layerstep.process.frames import is_library_file, is_ours
from layerstep.process.thread_frames import frames_of_threads

__all__ = ["Lines", "program_frame"]

_LOADERS = os.path.dirname(torch.utils.data.__file__) + os.sep
PERIOD = 0.02
"""Seconds between two samples; one takes about 10 µs."""
FEWEST = 5
"""The fewest samples before a line is named."""


_is_program: dict[int, tuple[CodeType, bool]] = {}
"""By identity: the code that dynamo makes may have constants without a hash."""


def program_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the program itself, not of a library."""
    while frame is not None:
        code = frame.f_code
        known = _is_program.get(id(code))
        if known is None:
            file = code.co_filename
            verdict = not (is_ours(frame) or is_library_file(file) or file.startswith("<"))
            known = _is_program[id(code)] = (code, verdict)
        if known[1]:
            return frame
        frame = frame.f_back
    return None


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LOADERS):
            return True
        frame = frame.f_back
    return False


class Lines:
    """How often a thread was at each line of the program, by the part of the step.

    `is_where` returns `inside` a model, `between` two steps, `rest`, or "" if it does not count.
    """

    def __init__(self, is_where: Callable[[], str]) -> None:
        self._is_where = is_where
        self._watched = 0
        self._stop: threading.Event | None = None
        self.found: dict[str, Counter[Place]] = {}
        self._loading: Counter[str] = Counter()

    def start(self, thread: int) -> None:
        self._watched = thread
        if self._stop is None:
            self._stop = threading.Event()
            looker = threading.Thread(
                target=self._look, args=(self._stop,), name="layerstep-lines", daemon=True
            )
            looker.name = "layerstep profile"
            looker.start()

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def clear(self) -> None:
        self.found = {}
        self._loading.clear()

    def top(self, where: str) -> tuple[Place, float] | None:
        """The line at which the thread was most often, and its share; None with too few samples."""
        found = self.found.get(where)
        if not found or found.total() < FEWEST:
            return None
        place, count = found.most_common(1)[0]
        return place, count / found.total()

    def loads(self, where: str) -> bool:
        """Was it loading data by torch.utils.data in at least half of the samples?"""
        return 2 * self._loading[where] >= max(1, self.found.get(where, Counter()).total())

    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(PERIOD):
            frame = frames_of_threads().get(self._watched)
            found = program_frame(frame)
            where = self._is_where()
            if found is not None and where:
                place = Place(found.f_code.co_filename, found.f_lineno, found.f_code.co_qualname)
                self.found.setdefault(where, Counter())[place] += 1
                self._loading[where] += _is_loading(frame)
            del frame, found
