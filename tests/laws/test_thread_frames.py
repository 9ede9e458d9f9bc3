"""Whoever asks where threads are does not block a program that starts threads and collects garbage."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """\
import gc
import os
import threading
import time

from layerstep.process.thread_frames import frames_of_threads


class Slow:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.0005)  # lets another thread run


def begin_threads():
    while True:
        threading.Thread(target=int).start()


def deep(levels):
    while not levels:
        time.sleep(0)
    deep(levels - 1)


threading.Thread(target=begin_threads, daemon=True).start()
for _ in range(4):
    threading.Thread(target=deep, args=(50,), daemon=True).start()
gc.set_threshold(5, 1, 1)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    Slow()
    assert threading.get_ident() in frames_of_threads() and gc.isenabled()
gc.disable()
frames_of_threads()
print("alive", gc.isenabled(), flush=True)
os._exit(0)
"""


def test_a_collection_while_frames_are_asked_for_blocks_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250)
    assert done.stdout == "alive False\n", done.stderr


def test_everything_asks_there() -> None:
    from pathlib import Path

    import layerstep

    files = Path(layerstep.__file__).parent.rglob("*.py")
    asking = [path.name for path in files if "_current_frames" in path.read_text(encoding="utf-8")]
    assert asking == ["thread_frames.py"]
