"""The process that the shell has started, while the run goes on in a checkpoint: it waits for its end.

This file is run by itself, in place of the program that was left: the process keeps its number and its
children, and gives all its memory back. It passes signals on to the run, and ends as the run ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import struct
import sys

__all__ = ["MESSAGE", "wait_for_run"]

MESSAGE = struct.Struct("=q")
"""The number of the process that is the run from now on."""
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
LEAVE_WITHIN = 5.0
"""Seconds that the checkpoints have to end after the run."""


def wait_for_run(run: int, news: int) -> int:
    """The status of the run at its end. `news`: where it is told that another process is the run now."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    os.set_blocking(news, False)
    ended: dict[int, int] = {}
    while True:
        ended |= _ended_children()
        run = _latest(news, run)  # after the children: a process tells who follows it before it ends
        if run in ended:
            _wait_for_others(news)
            return ended[run]
        came = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 1.0)
        # What a terminal sends comes from the kernel, and goes to the run as well.
        if came is not None and came.si_signo != signal.SIGCHLD and came.si_code <= 0:
            run = _latest(news, run)  # one that has just ended takes a signal and does nothing with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(run, came.si_signo)


def _ended_children() -> dict[int, int]:
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            found[pair[0]] = pair[1]
    return found


def _latest(news: int, run: int) -> int:
    with contextlib.suppress(BlockingIOError):
        while text := os.read(news, MESSAGE.size):
            (run,) = MESSAGE.unpack(text)
    return run


def _wait_for_others(news: int) -> None:
    """Each checkpoint holds the other end of `news`: when all are gone, it ends."""
    while select.select([news], [], [], LEAVE_WITHIN)[0]:
        if not os.read(news, MESSAGE.size):
            return


def _end_like(status: int) -> None:
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the run has left its own, if one is wanted
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    _end_like(wait_for_run(int(sys.argv[1]), int(sys.argv[2])))
