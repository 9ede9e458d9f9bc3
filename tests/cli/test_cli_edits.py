"""Edits in batch work: refused unless they are asked for, and told with how often they acted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import quick_python

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
for number in range(3):
    print(net(torch.ones(1, 4)).sum().item().hex())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def batch(script: Path, *words: object) -> quick_python.Finished:
    argv = ["-m", "layerstep", "run", "--batch", *map(str, words), str(script)]
    return quick_python.run(argv, input="", env={**os.environ, "COLUMNS": "200"})


@pytest.mark.parametrize(
    "line",
    [
        "set out = 0",
        "set model.0.weight = 0",
        "edit 0 0",
        "edit 0.weight.grad 0",
        "edit 0.grad 0",
        "ablate 0",
        "scale 0 2",
        "steer 0 torch.ones(4)",
        "skip 1",
        "patch 1 from torch.ones(1, 4)",
    ],
)
def test_edits_are_refused(script: Path, line: str) -> None:
    bare = quick_python.run([str(script)], input="", env={**os.environ})
    done = batch(script, "-e", "tbreak 0", "-e", "continue", "-e", line, "-e", "continue")
    assert "edits change the run, and this is batch work; run with --allow-edits" in done.stderr
    assert (done.stdout, done.returncode) == (bare.stdout, 2)


def test_what_is_only_tried_is_allowed(script: Path) -> None:
    done = batch(script, "-e", "break 2 if forward == 1", "-e", "continue", "-e", "whatif ablate 1")
    assert "calls differ" in done.stderr and done.returncode == 0


def test_the_end_tells_each_edit_and_how_often_it_acted(script: Path, tmp_path: Path) -> None:
    report, transcript = tmp_path / "report.jsonl", tmp_path / "session.txt"
    lines = (f"transcript {transcript}", "scale 0 2", "ablate 1 for 2", "edit 2 0 if False", "continue")
    given = [word for line in lines for word in ("-e", line)]
    done = batch(script, "--allow-edits", "--json", report, *given)
    told = "edited: 1 at 0 (acted 3 times); 2 at 1 (acted 2 times)"
    views = [json.loads(line)["view"] for line in report.read_text().splitlines()]
    assert told in [view.get("text") for view in views] and done.returncode == 0
    assert told in done.stderr and told in transcript.read_text()
    assert "edit 3 at 2" in done.stderr and "the condition never held" in done.stderr
