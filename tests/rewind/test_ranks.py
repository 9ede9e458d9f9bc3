"""Going back on one of two ranks: right under DDP, refused where the forward talks to the other rank."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DDP = """
import contextlib, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from layerstep import DebugConsole

dist.init_process_group("gloo")
rank = dist.get_rank()


def trained(lines):
    torch.manual_seed(0)
    layers = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    torch.manual_seed(100 + rank)
    console = DebugConsole(model, commands=lines, output=sys.stderr) if lines else contextlib.nullcontext()
    with console:
        for _ in range(3):
            loss = model(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [*model.state_dict().values(), torch.rand(3)]


bare = trained([])
lines = "break 1;continue;back;back 0 enter;delete;break 4;continue;restart;delete;continue".split(";")
gone_back = trained(lines if rank == 0 else [])
sys.stdout.write(f"rank {rank} equal: {all(map(torch.equal, bare, gone_back))}\\n")
dist.destroy_process_group()
"""

TALKS = """
import sys, torch, torch.distributed as dist
from torch import nn
from layerstep import DebugConsole

dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.b(self.a(x))
        mean = x.detach().mean()
        dist.all_reduce(mean)
        return self.c(x) + mean


model = Net()
lines = "break b;continue;back;whatif ablate a;delete;break c;continue;back;continue".split(";")
if dist.get_rank() == 0:
    with DebugConsole(model, commands=lines, output=sys.stderr):
        model(torch.ones(2, 4))
else:
    model(torch.ones(2, 4))
sys.stdout.write("rank ended\\n")
dist.destroy_process_group()
"""


def on_two_ranks(path: Path, script: str) -> str:
    file = path / "train.py"
    file.write_text(script)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(file)], capture_output=True, text=True, timeout=200, check=False
    )
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.long
def test_under_ddp_one_rank_goes_back_and_all_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    text = on_two_ranks(tmp_path, DDP)
    assert len(re.findall(r"rank \d equal: True", text)) == 2, text
    assert "came back to the same bits: 2 of 2 outputs" in text and "the forward has begun again" in text


@pytest.mark.long
def test_a_forward_that_talks_to_other_ranks_is_not_begun_again(tmp_path: Path) -> None:
    """Before the collective it can go back; a rerun up to the end would wait for the other rank."""
    text = on_two_ranks(tmp_path, TALKS)
    assert text.count("rank ended") == 2, text
    assert "came back to the same bits: 2 of 2 outputs" in text
    assert "it cannot be rerun on one rank alone: allreduce_ would wait for the other ranks" in text
    assert "`back` on one rank alone: this forward has talked to other ranks, and would wait for them" in text
