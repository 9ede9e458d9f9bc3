"""A training that is not written for any of this, what it prints, and the processes that it leaves."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import quick_python

TRAIN = """\
import hashlib
import random
import sys

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)
numpy.random.seed(0)


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(300) + random.random() + numpy.random.rand(), index % 3


net = nn.Sequential(nn.Linear(300, 600), nn.BatchNorm1d(600), nn.ReLU(), nn.Dropout(0.2), nn.Linear(600, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
step = 0
while step < 14:
    for x, y in DataLoader(Rows(), batch_size=16, shuffle=True):
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        print("step", step, loss.item().hex(), flush=True)
values = hashlib.sha256()
for tensor in net.state_dict().values():
    values.update(tensor.numpy().tobytes())
for state in optimizer.state.values():
    for tensor in state.values():
        values.update(tensor.numpy().tobytes())
values.update(torch.get_rng_state().numpy().tobytes())
values.update(repr((random.getstate(), numpy.random.get_state(), scheduler.state_dict())).encode())
print("end", values.hexdigest())
sys.exit(7)
"""
MARK = "LAYERSTEP_TEST_MARK"


@dataclass(frozen=True, slots=True)
class Done:
    """A run that is over."""

    out: str
    screen: str
    code: int

    @property
    def end(self) -> str:
        """The digest of all state at the end."""
        return re.findall(r"^end (\w+)$", self.out, re.MULTILINE)[-1]

    @property
    def steps(self) -> list[int]:
        return [int(number) for number in re.findall(r"^step (\d+) ", self.out, re.MULTILINE)]

    @property
    def losses(self) -> dict[int, set[str]]:
        """Of each step, the different losses that were printed."""
        found: dict[int, set[str]] = {}
        for number, loss in re.findall(r"^step (\d+) (\S+)$", self.out, re.MULTILINE):
            found.setdefault(int(number), set()).add(loss)
        return found


def environment(mark: str, threads: int = 2) -> dict[str, str]:
    """Two threads are the point of it; the mark is passed on to every process that is started or forked."""
    clean = {key: value for key, value in os.environ.items() if key not in ("CI", "PAGER")}
    idle = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin while they wait are slow on a busy machine
    return {**clean, **idle, "OMP_NUM_THREADS": str(threads), "COLUMNS": "100", MARK: mark}


def run(script: Path, lines: Sequence[str] | None, *options: str) -> Done:
    """Run a script bare, or under the debugger with these lines in a pipe. No process may be left."""
    words = [] if lines is None else ["-m", "layerstep", "run", *options]
    done = quick_python.run(
        [*words, script], input="\n".join(lines or ()) + "\n", env=environment(""), new_session=True
    )
    assert not in_session(done.pid), "processes are left"
    return Done(done.stdout, done.stderr, done.returncode)


def processes(mark: str) -> list[int]:
    """All that carry the mark and are no zombies."""
    return [number for number in _alive() if _has(number, mark)]


def in_session(session: int) -> list[int]:
    """All of a session that are no zombies."""
    return [number for number, its in _alive().items() if its == session]


def _alive() -> dict[int, int]:
    """The session of each process that is no zombie."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(path.parent.name)] = int(session)
    return found


def _has(number: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    return False


def wait_until_gone(mark: str, seconds: float = 100) -> None:
    until = time.monotonic() + seconds
    while (left := processes(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left
