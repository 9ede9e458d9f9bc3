"""A checkpoint: a fork of the process that waits until it is told to go on, or to end."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from layerstep.history.forking import die_with_parent, fork_process, held_signals

__all__ = ["Checkpoint", "Handed", "fork_checkpoint"]

_HEAD = struct.Struct("=q")
_ENDING = ("SIGTERM", "SIGHUP")
_FOR_THE_RUN = ("SIGINT", "SIGQUIT")
REPARENTED_WITHIN = 5.0
"""Seconds that a checkpoint waits for the end of the process that went on until then."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What a checkpoint is told when the run goes on in it."""

    first: int
    """The process that the shell has started. It is the parent of the run from now on."""
    content: dict[str, Any]


@dataclass(slots=True)
class Checkpoint:
    """One that waits, as the run sees it."""

    step: int
    """So many training steps were done when it was taken."""
    process: int
    line: socket.socket
    """What is sent here it reads. If all who hold this end are gone, it ends."""
    taken: float = field(default_factory=time.time)

    @property
    def is_alive(self) -> bool:
        asked = select.poll()
        asked.register(self.line, select.POLLIN)  # it never writes: a hang-up is all that can come
        return not asked.poll(0)

    @property
    def own_bytes(self) -> int:
        """Memory that it alone holds: what the run has written since it was taken."""
        total = 0
        with contextlib.suppress(OSError), open(f"/proc/{self.process}/smaps_rollup") as file:
            for row in file:
                if row.startswith("Private_"):
                    total += int(row.split()[1]) * 1024
        return total

    def go(self, handed: Handed) -> None:
        """Let the run go on in it; an OSError if it is gone."""
        text = pickle.dumps(handed)
        self._send(_HEAD.pack(len(text)) + text)

    def drop(self) -> None:
        """Let it end."""
        with contextlib.suppress(OSError):
            self._send(_HEAD.pack(0))
        self.line.close()

    def _send(self, text: bytes) -> None:
        """MSG_NOSIGNAL: a program may have SIGPIPE end it, and the checkpoint may have been killed."""
        rest = memoryview(text)
        while rest:
            rest = rest[self.line.send(rest, socket.MSG_NOSIGNAL) :]


def fork_checkpoint(step: int) -> Checkpoint | Handed:
    """In the run: a new checkpoint. In the checkpoint, later: what it was handed when it became the run."""
    ours, its = socket.socketpair()
    before = {name: signal.getsignal(getattr(signal, name)) for name in (*_ENDING, *_FOR_THE_RUN)}
    try:
        with held_signals():
            child = fork_process()
            if child == 0:
                ours.close()
                _rest(before)
    except BaseException:
        ours.close()
        its.close()
        raise
    if child:
        its.close()
        return Checkpoint(step, child, ours)
    handed = _wait(its)
    with held_signals():
        for name, handler in before.items():
            if handler is not None:
                signal.signal(getattr(signal, name), handler)
    return handed


def _rest(before: dict[str, Any]) -> None:
    """While it waits, Ctrl-C is for the run; what ends the whole group ends it too, unless it is ignored."""
    for name in _FOR_THE_RUN:
        if before[name] is not None:  # else it was set from C
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name in _ENDING:
        if before[name] not in (None, signal.SIG_IGN):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def _wait(line: socket.socket) -> Handed:
    """Sleep until there is word from the run. Most checkpoints end here."""
    try:
        (size,) = _HEAD.unpack(_read(line, _HEAD.size))
        if size == 0:
            _end()
        handed: Handed = pickle.loads(_read(line, size))
        line.close()
    except BaseException:
        _end()
    _wait_for_parent(handed.first)
    return handed


def _read(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            _end()
        found += more
    return found


def _end() -> NoReturn:
    os._exit(0)  # no `atexit`, no `finally`: those are the run's


def _wait_for_parent(first: int) -> None:
    """The process that ran until now ends, and the first one becomes the parent: then die with that."""
    until = time.monotonic() + REPARENTED_WITHIN
    while os.getppid() != first and time.monotonic() < until:
        time.sleep(0.001)
    if os.getppid() == first:
        die_with_parent()
