"""The process that waits while the run goes on in a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layerstep.history import waiter

CHILDREN = """
import os, signal, sys
from layerstep.history.waiter import _end_like, wait_for_run

def sleeper():
    child = os.fork()
    if not child:
        signal.pause()
    return child

first, second = sleeper(), sleeper()
print(first, second, flush=True)
_end_like(wait_for_run(first, int(sys.argv[1])))
"""


def wait_for_state(process: int, state: str) -> None:
    end = time.monotonic() + 100
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < end, f"it is not in state {state}"
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="back step is for Linux")
def test_a_signal_reaches_the_run_that_has_just_followed_another() -> None:
    """The waiter stands still meanwhile, so that it learns of all at once, as on a busy machine."""
    ours, its = os.pipe()
    words = [sys.executable, "-c", CHILDREN, str(ours)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=[ours]) as process:
        os.close(ours)
        assert process.stdout is not None
        first, second = map(int, process.stdout.readline().split())
        try:
            wait_for_state(process.pid, "S")  # it does not read who is the run before it wakes
            os.kill(process.pid, signal.SIGSTOP)
            wait_for_state(process.pid, "T")
            os.write(its, waiter.MESSAGE.pack(second))
            os.kill(first, signal.SIGKILL)
            os.kill(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGCONT)
            os.close(its)
            assert process.wait(100) == -signal.SIGTERM
        finally:
            for each in (second, process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
