"""Ctrl-C in the worker processes of a program.

A terminal sends SIGINT to every process in the foreground, and a DataLoader worker dies of it. So a worker
asks a page of memory that it shares with the debugger. While the debugger turns Ctrl-C into stops, the worker
goes on and leaves its number on the page. When the debugger passes Ctrl-C on to the program, it passes it on
to those workers too. Workers that started before a debugger was first attached do not ask: Ctrl-C reaches
them as always.

Forked workers are reached by `os.register_at_fork`. Spawned ones run the text of this file, which therefore
uses the standard library alone: they may not find layerstep on their path.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Shield", "debugger_takes", "forget_notes", "pass_on", "protect_workers", "shielded"]

SECONDS_PASSED_ON = 2.0
"""Seconds after the debugger has passed Ctrl-C on in which workers take each further one."""
_IN_WORKER = "layerstep.worker"
"""The name of this module where its text runs in a spawned worker."""
_HEAD = struct.Struct("=dii")
"""Until when Ctrl-C is passed on, the process that debugs, and whether it takes Ctrl-C."""
_NOTE = struct.Struct("=i")


class Page:
    """What the debugger and the workers share."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._memory = mmap.mmap(file, mmap.PAGESIZE)
        self._notes = (mmap.PAGESIZE - _HEAD.size) // _NOTE.size
        stat = os.fstat(file)
        self._identity = (stat.st_dev, stat.st_ino)

    @property
    def is_open(self) -> bool:
        """Is its file still open? A program may close all files that it did not open."""
        with contextlib.suppress(OSError):
            stat = os.fstat(self.file)
            return (stat.st_dev, stat.st_ino) == self._identity
        return False

    def write(self, *, until: float, owner: int, takes: bool) -> None:
        _HEAD.pack_into(self._memory, 0, until, owner, takes)

    @property
    def debugger_takes(self) -> bool:
        """Does the debugger turn Ctrl-C into a stop now? One that was killed does not."""
        until, owner, takes = _HEAD.unpack_from(self._memory, 0)
        if not takes or time.monotonic() < until:
            return False
        try:
            os.kill(owner, 0)
        except OSError:
            return False
        return True

    def note(self, process: int) -> None:
        place = _HEAD.size + process % self._notes * _NOTE.size
        _NOTE.pack_into(self._memory, place, process)

    def take_notes(self) -> list[int]:
        """The workers that ignored a Ctrl-C since the last call."""
        length = self._notes * _NOTE.size
        found = struct.unpack_from(f"={self._notes}i", self._memory, _HEAD.size)
        self._memory[_HEAD.size : _HEAD.size + length] = bytes(length)
        return [process for process in found if process]


class Shield:
    """The SIGINT handler of a worker."""

    def __init__(self, page: Page, before: Any) -> None:
        self.page = page
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.page.debugger_takes:
            self.page.note(os.getpid())
        elif callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(number, self.before)
            signal.raise_signal(number)


_page: Page | None = None


def _opened() -> Page | None:
    """The page, made when a process is first started or debugged. None if it cannot be made."""
    global _page
    if _page is None:
        with contextlib.suppress(OSError, ValueError):
            if hasattr(os, "memfd_create"):
                file = os.memfd_create("layerstep")
            else:
                with tempfile.TemporaryFile() as temporary:
                    file = os.dup(temporary.fileno())
            os.ftruncate(file, mmap.PAGESIZE)
            _page = Page(file)
    return _page


def debugger_takes(takes: bool) -> None:
    """Set whether Ctrl-C means a stop from now on."""
    page = _opened() if takes else _page
    if page is not None:
        page.write(until=0.0, owner=os.getpid(), takes=takes)


def forget_notes() -> None:
    """The last Ctrl-C was for the debugger: pass it on to no worker."""
    if _page is not None:
        _page.take_notes()


def pass_on() -> None:
    """Ctrl-C is for the program after all: send it to the workers that ignored it."""
    if _page is None:
        return
    _page.write(until=time.monotonic() + SECONDS_PASSED_ON, owner=os.getpid(), takes=True)
    for process in _page.take_notes():
        with contextlib.suppress(OSError):
            if os.getpgid(process) == os.getpgrp():  # else another process has its number now
                os.kill(process, signal.SIGINT)


def shielded(before: Any) -> Any:
    """The handler for a worker that would have the handler `before` without us."""
    return Shield(_page, before) if _page is not None and before is not signal.SIG_IGN else before


@functools.cache
def protect_workers() -> None:
    """Let processes that start from now on ask before they take a Ctrl-C.

    Called once, when a debugger is first attached: functions registered for forks cannot be removed.
    """
    if not hasattr(os, "register_at_fork"):
        return
    os.register_at_fork(before=_opened, after_in_child=_protect_this)
    import multiprocessing.process

    # Process objects carry this to their process, together with their authentication key.
    config: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    config["layerstep"] = _Ticket()


def _protect_this() -> None:
    """Install the shield in a new process, unless its program has a handler of its own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, shielded(signal.default_int_handler))


class _Ticket:
    """Pickled for a spawned process, it becomes the text of this file, which runs there."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        import inspect
        from multiprocessing import reduction

        page = _opened()
        if page is None or not page.is_open or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            return str, ()
        try:
            text = inspect.getsource(sys.modules[__name__])
            return exec, (text, {"__name__": _IN_WORKER, "file": reduction.DupFd(page.file)})
        except Exception:  # no source, or a start method that cannot pass files on
            return str, ()


if __name__ == _IN_WORKER:
    with contextlib.suppress(Exception):
        _page = Page(globals()["file"].detach())
        _protect_this()
