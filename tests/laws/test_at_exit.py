"""A model that is called while the interpreter comes down is called as without us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import atexit
import threading
import time

import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
x = torch.ones(3, 4)
{attach}
net(x)


class Holder:
    def __init__(self):
        self.net, self.x, self.me = net, x, self

    def __del__(self):
        print("deleted", tuple(self.net(self.x).shape), flush=True)


def late():
    time.sleep(0.2)
    print("late", tuple(net(x).shape), flush=True)


def at_exit():
    net(x).sum().backward()
    print("at exit", tuple(net(x).shape), flush=True)


holder = Holder()
atexit.register(at_exit)
threading.Thread(target=late).start()
"""
LINES = ("break 0", "record **", "catch exception", "memory on", "profile on", "watch --stop 0.weight")
ATTACH = f"""\
import io
import layerstep

console = layerstep.attach(net, input=io.StringIO("continue\\n" * 99), output=io.StringIO())
for line in {LINES!r}:
    console.execute(line)
"""
SAID = ["late (3, 8)", "at exit (3, 8)", "deleted (3, 8)"]


def ended(*command: str, lines: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], input=lines, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr and "bug in layerstep" not in done.stderr, done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line in SAID]


@pytest.mark.long
def test_with_a_console_left_attached(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{attach}", ATTACH))
    assert ended(str(path)) == SAID


def test_under_run(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{attach}", ""))
    given = [word for line in LINES for word in ("-e", line)]
    assert ended("-m", "layerstep", "run", *given, str(path), lines="continue\n" * 99) == SAID
