"""A fork of the process that can go on computing: what is done before it and in the child.

libgomp's threads do not survive a fork, and the next parallel kernel would wait for them for ever. So its
pool is let go before; the next kernel makes a new one, of the same size, and computes the same bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from layerstep.process.forks import child_keeps_session

__all__ = ["die_with_parent", "fork_process", "held_signals", "reap_orphans"]

_PAUSE_HARD = 2
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
HELD = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD")
    if hasattr(signal, name)
)
"""Signals that must not arrive in the middle of a fork, or while a process becomes another one."""


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Signals that come meanwhile arrive at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_process() -> int:
    """Fork, with the session kept in the child; 0 in the child, its number in the parent."""
    _flush()
    _release_pool()
    # Python seeds `random` anew in every forked child: the child would not draw what the run draws.
    stream, interrupt = random.getstate(), signal.getsignal(signal.SIGINT)
    with child_keeps_session(), _bars_at_rest(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # our own threads wait, and hold nothing
        child = os.fork()
    if child == 0:
        random.setstate(stream)
        if signal.getsignal(signal.SIGINT) is not interrupt:
            signal.signal(signal.SIGINT, interrupt)
    return child


def die_with_parent() -> None:
    """End this process by SIGKILL when its parent ends, however that ends."""
    _libc().prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def reap_orphans() -> None:
    """Become the parent of all descendants whose own parent ends; an `exec` keeps that."""
    _libc().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _libgomp() -> ctypes.CDLL | None:
    """The one that torch has loaded. Builds of torch with another OpenMP reset it in the child themselves."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if "libgomp" in line:
                return ctypes.CDLL(line.split(maxsplit=5)[-1].strip())
    return None


def _release_pool() -> None:
    pool = _libgomp()
    if pool is not None and hasattr(pool, "omp_pause_resource_all"):
        pool.omp_pause_resource_all(_PAUSE_HARD)


def _flush() -> None:
    """Or the child would write the same text once more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _libc().fflush(None)


@contextlib.contextmanager
def _bars_at_rest() -> Iterator[None]:
    """tqdm's monitor wakes up now and then and takes a lock, which it must not hold as the process forks.

    Only the lock of threads: the other one is shared with the child, which would release it a second time.
    """
    module = sys.modules.get("tqdm.std")
    bars: Any = getattr(module, "tqdm", None)
    lock = getattr(bars.get_lock(), "th_lock", None) if bars is not None else None
    with lock if lock is not None else contextlib.nullcontext():
        yield
