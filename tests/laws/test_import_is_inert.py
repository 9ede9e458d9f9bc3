"""`import layerstep` patches nothing: the process is as it was, and so are the processes that it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """\
import multiprocessing
import os
import pickle
import signal
import sys
import threading

import torch
from torch import nn


def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def state():
    homes = (torch, torch.jit, torch.autograd, torch.Tensor, nn.Module, nn.TransformerEncoderLayer, torch._C)
    homes += (torch.optim.Optimizer, threading, threading.Thread, os, signal, multiprocessing, pickle)
    here = multiprocessing.current_process()
    return (
        handlers(),
        dict(here._config),
        (sys.excepthook, sys.displayhook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        (sys.meta_path[:], sys.path_hooks[:], threading.enumerate(), sorted(os.listdir("/proc/self/fd"))),
        [{name: id(value) for name, value in vars(home).items()} for home in homes],
        [id(table) for table in vars(nn.modules.module).values() if isinstance(table, dict)],
        [len(table) for name, table in vars(nn.modules.module).items() if "_hooks" in name],
    )


def in_fork():
    process = os.fork()
    if process == 0:
        fds = sorted(os.listdir("/proc/self/fd"))
        as_it_was = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os._exit(0 if as_it_was and fds == sorted(before[3][3]) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


before = state()
modules = {name: id(module) for name, module in sys.modules.items()}
import layerstep

after = state()
for number, (one, other) in enumerate(zip(before, after)):
    assert one == other, number
assert all(id(sys.modules[name]) == known for name, known in modules.items())
new = set(sys.modules) - set(modules)
assert all(name.partition(".")[0] == "layerstep" for name in new), new
assert in_fork() == 0
print("untouched")
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads open files from /proc")
def test_importing_it_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250)
    assert done.stdout == "untouched\n", done.stderr


ATTACHING = """\
import io
import multiprocessing

from torch import nn

from layerstep import attach

attach(nn.Linear(1, 1))
print("layerstep" in multiprocessing.current_process()._config)
"""


def test_attaching_where_it_is_switched_off_changes_nothing() -> None:
    command, environment = [sys.executable, "-c", ATTACHING], {**os.environ, "LAYERSTEP": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.stdout.endswith("False\n"), done.stderr
