"""A NaN that comes from another rank is said to come from there, and a rerun never waits for other ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from zoo import console_on

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.inner(x)
        return self.head(hidden.abs().neg().sqrt() if dist.get_rank() == 1 else hidden)


model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_nan_that_came_through_an_all_reduce_is_said_to(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    lines = [word for line in ("catch nonfinite", "continue", "continue") for word in ("-e", line)]
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *run, "-m", "layerstep", "run", "--batch", *lines, str(script)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    words = " ".join((done.stdout + done.stderr).split())
    assert "nan born in sqrt" in words, "on the rank that made it"
    assert "came from another rank, through the all-reduce of gradients by DistributedDataParallel" in words
    assert "another rank may have made it" in words, "in the next forward, which reads bad parameters"
    assert "not reproducible" not in words
    assert "a bug in layerstep" not in words


@pytest.mark.parametrize("line", ["ops", "flops", "again", "shadow fp64"])
def test_a_module_that_talks_to_other_ranks_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("layerstep.rerun.other_ranks.has_ranks", lambda: True)
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    model[1].forward = lambda x: x  # what it does is of no interest: it must not be called again
    console, seen = console_on(model, ["break Sequential", "continue", line, "continue"])
    with console:
        model(torch.ones(2, 2))
    assert "SyncBatchNorm would wait for the other ranks" in " ".join(seen.text.split())
    assert not seen.bugs


@pytest.mark.parametrize("line", ["back", "restart"])
def test_going_back_on_one_rank_alone_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("layerstep.rerun.other_ranks.has_ranks", lambda: True)
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    model[1].forward = lambda x: x
    console, seen = console_on(model, ["break 0", "continue", line, "continue"])
    with console:
        model(torch.ones(2, 2))
    told = "`back` on one rank alone: SyncBatchNorm would wait for the other ranks"
    assert told in " ".join(seen.text.split()) and not seen.bugs
