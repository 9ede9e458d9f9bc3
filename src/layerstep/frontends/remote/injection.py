"""Ask a process that does not listen to do so: Python 3.14 runs a file in another process of this user."""

from __future__ import annotations

import os
import sys
import tempfile
import time

from layerstep.errors import UserError
from layerstep.frontends.remote.sockets import is_listening

__all__ = ["ask_to_listen"]

SECONDS = 10.0
SCRIPT = "import layerstep\nlayerstep.listen()\n"


def ask_to_listen(pid: int) -> None:
    """Let a process import layerstep and listen, at the next safe point of its main thread.

    Both sides must be the same minor version of Python, 3.14 or later.
    """
    run_in_process = getattr(sys, "remote_exec", None)
    if run_in_process is None:
        raise UserError(
            f"process {pid} does not listen",
            "start it with `layerstep run --listen`, or call `layerstep.listen()` in it; "
            "Python 3.14 can attach without",
        )
    file, path = tempfile.mkstemp(prefix="layerstep-", suffix=".py")
    try:
        with open(file, "w", encoding="utf-8") as script:
            script.write(SCRIPT)
        run_in_process(pid, path)
        _wait_for(pid)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot attach to process {pid}: {error}", "it needs the right to trace it"
        ) from None
    finally:
        os.unlink(path)


def _wait_for(pid: int) -> None:
    """Wait until the process listens; it reaches a safe point only between two lines of Python."""
    until = time.monotonic() + SECONDS
    while not is_listening(pid):
        if time.monotonic() > until:
            raise UserError(f"process {pid} does not come to a safe point", "`py-spy dump` shows where it is")
        time.sleep(0.05)
