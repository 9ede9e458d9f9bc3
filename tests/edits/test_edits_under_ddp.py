"""Edits on two ranks: a gradient is edited once, after the ranks are averaged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
start = model.module.weight.item()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
x = torch.full((1, 1), float(dist.get_rank() + 1))
for at in range(4):
    if at < 3:
        with model.no_sync():
            model(x).sum().backward()
    else:
        model(x).sum().backward()
optimizer.step()
print(f"moved by {start - model.module.weight.item():.4f}", flush=True)
dist.destroy_process_group()
"""


def run(path: Path, *lines: str) -> str:
    script = path / "train.py"
    script.write_text(SCRIPT)
    given = [word for line in lines for word in ("-e", line)]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "layerstep", "run", "--batch", "--allow-edits", *given, str(script)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.long
def test_a_gradient_is_edited_once_after_the_ranks_are_averaged(tmp_path: Path) -> None:
    """Four passes are added up, on rank 0 of 1, on rank 1 of 2: 4 · 1.5 = 6, and half of it."""
    lines = ("tbreak ** if forward == 1", "continue", "edit weight.grad grad * 0.5", "continue")
    text = run(tmp_path, *lines)
    assert re.findall(r"moved by ([\d.]+)", text) == ["3.0000", "3.0000"], text
