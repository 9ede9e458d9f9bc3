"""Programs of other packages, bare and debugged: their stdout stays the same, and nothing of ours fails.

`make test-apps` installs the packages into an environment of its own and runs this. Weights are random.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))
SECONDS = 300
"""No run may take longer; only one that hangs does."""

KINDS = {
    "gpytorch_regression": "Softplus",
    "monai_unet": "Conv3d",
    "neuralop_fno": "Conv1d",
    "smp_unet": "Conv2d",
    "torchrl_dqn": "DQNLoss",
}
"""Where to stop in programs whose models have no Linear."""

LOOK = """
tbreak type:{kind}
continue
where
inspect
stats out
list
step
next
step op
finish
tree 2
weights
anomalies
activations
stability
flops
ops
grad
perturbed?
info cost
dump stop.lscore
continue
"""

WATCH = """
catch nonfinite
record **
grad record
leaks on
continue
"""

COST = """
profile 2 --report
memory 2
continue
"""

Bytes = dict[str, dict[str, int]]
"""By the path of a module, then by the column."""

CALLS = {
    "accelerate_loop": {2},  # two micro-batches a step
    "ignite_engine": {1},  # the evaluation is no part of a step
    "timm_training": {0.5},  # two steps: the last of the ResNet and the first of the ViT
    "transformers_trainer": {2},
}
"""How often each module is called in a typical step; counted by hand, as the bytes below are."""

MEMORY: dict[str, Bytes] = {
    "accelerate_loop": {
        "0": {  # AdamW: two moments, and a count for each of weight and bias
            "parameters": 4 * (10 * 20 + 20),
            "gradients": 4 * (10 * 20 + 20),
            "optimizer": 2 * 4 * (10 * 20 + 20) + 2 * 4,
        },
        "1": {"saved": 4 * 4 * 20},  # the result, which the Linear after it needs as well
        "2": {
            "parameters": 4 * (20 * 2 + 2),
            "gradients": 4 * (20 * 2 + 2),
            "optimizer": 2 * 4 * (20 * 2 + 2) + 2 * 4,
        },
        # log-probabilities, labels and the sum of their weights; the 2 by which accelerate divides the loss
        "(outside)": {"saved": 4 * 4 * 2 + 8 * 4 + 4 + 8},
    },
    "ignite_engine": {
        "0": {  # RMSprop: one moment, and the counts
            "parameters": 4 * (6 * 12 + 12),
            "gradients": 4 * (6 * 12 + 12),
            "optimizer": 4 * (6 * 12 + 12) + 2 * 4,
        },
        "1": {"saved": 4 * 6 * 12},  # the result of tanh
        "2": {"saved": 4 * 6 * 12},  # the mask
        "3": {
            "parameters": 4 * (12 * 3 + 3),
            "gradients": 4 * (12 * 3 + 3),
            "optimizer": 4 * (12 * 3 + 3) + 2 * 4,
            "saved": 4 * 6 * 12,  # its input
        },
        "loss": {"saved": 4 * 6 * 3 + 8 * 6 + 4},
    },
    "timm_training": {
        "layer4.0.conv2": {
            "parameters": 4 * 512 * 512 * 3 * 3,
            "gradients": 4 * 512 * 512 * 3 * 3,
            "optimizer": 2 * 4 * 512 * 512 * 3 * 3 + 4,
        },
        "bn1": {  # of four images of 3×32×32: 64 maps of 16×16, and the mean and the spread of each
            "parameters": 4 * (64 + 64),
            "buffers": 4 * (64 + 64) + 8,
            "optimizer": 2 * 4 * (64 + 64) + 2 * 4,
            "saved": 4 * 4 * 64 * 16 * 16 + 4 * (64 + 64),
        },
        # in place: its result, of 64 maps of 16×16 as well
        "act1": {"saved": 4 * 4 * 64 * 16 * 16},
        # 8×8 of each map, and where they were in it
        "maxpool": {"saved": 8 * 4 * 64 * 8 * 8},
    },
    "transformers_trainer": {
        "transformer.h.0.mlp.c_fc": {
            "parameters": 4 * (32 * 128 + 128),
            "gradients": 4 * (32 * 128 + 128),
            "optimizer": 2 * 4 * (32 * 128 + 128) + 2 * 4,
            "saved": 4 * 2 * 12 * 32,  # its input: two rows of 12 tokens
        },
        # tied to lm_head, so one gradient and one state
        "transformer.wte": {
            "parameters": 4 * 50 * 32,
            "gradients": 4 * 50 * 32,
            "optimizer": 2 * 4 * 50 * 32 + 4,
        },
        "all": {
            "parameters": 4 * ((50 + 16) * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32),
        },
    },
}


@functools.cache
def bare(program: Path) -> str:
    """What the program prints by itself."""
    done = run([sys.executable, str(program)], HERE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(command: list[str], folder: Path, lines: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore", "CI": ""}
    env |= {"LAYERSTEP_CONFIG": str(folder / "config.toml"), "LAYERSTEP_STATE": str(folder / "state")}
    env["OMP_NUM_THREADS"] = "1"  # programs that run side by side would wait for each other's threads
    return subprocess.run(
        command, cwd=folder, env=env, input=lines, capture_output=True, text=True, timeout=SECONDS
    )


def debugged(program: Path, lines: str, folder: Path) -> str:
    """What the debugger says while it runs the program; the program's own output must be as it was."""
    start = [sys.executable, "-m", "layerstep", "run", "--json", "said.jsonl", str(program)]
    done = run(start, folder, lines)
    assert done.stdout == bare(program), done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]
    assert "a bug in layerstep" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def tables(folder: Path) -> list[list[dict[str, Any]]]:
    """The rows of every table that was shown, by column."""

    def inside(value: Any) -> Iterator[list[dict[str, Any]]]:
        if isinstance(value, dict) and value.get("view") == "table":
            names = [column["name"] for column in value["columns"]]
            yield [dict(zip(names, row, strict=True)) for row in value["rows"]]
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from inside(each)

    return list(inside([json.loads(line) for line in (folder / "said.jsonl").read_text().splitlines()]))


def each_program(test: Any) -> Any:
    """All tests of a program run in one worker, so that it runs bare once."""
    cases = [
        pytest.param(program, id=program.stem, marks=pytest.mark.xdist_group(program.stem))
        for program in PROGRAMS
    ]
    return pytest.mark.timeout(3 * SECONDS)(pytest.mark.parametrize("program", cases)(test))


@each_program
def test_looking_and_dumping(program: Path, tmp_path: Path) -> None:
    said = debugged(program, LOOK.format(kind=KINDS.get(program.stem, "Linear")), tmp_path)
    core = tmp_path / "stop.lscore"
    assert core.exists(), said
    opened = [sys.executable, "-m", "layerstep", "open", str(core)]
    done = run(opened, tmp_path, "where\nstats --params\nquit\n")
    assert done.returncode == 0 and "Traceback" not in done.stderr + done.stdout, done.stderr


@each_program
def test_catching_and_recording(program: Path, tmp_path: Path) -> None:
    debugged(program, WATCH, tmp_path)


@each_program
def test_costs(program: Path, tmp_path: Path) -> None:
    said = debugged(program, COST, tmp_path)
    time = next(rows for rows in tables(tmp_path) if "own ms" in rows[0])
    memory = next(rows for rows in tables(tmp_path) if rows[-1].get("module") == "all")
    name = program.stem
    if name in CALLS:
        # Both models of timm_training are called `model`, and the row of that name counts both.
        calls = {row["n"] for row in time if row["n"] is not None and row["module"] != "model"}
        assert calls == CALLS[name], said
    found = {row["module"]: row for row in memory}
    for path, columns in MEMORY.get(name, {}).items():
        assert {column: found[path][column] for column in columns} == columns, f"{path}\n{said}"
    for column in found["all"]:
        if column != "module":
            parts = sum(row[column] or 0 for row in memory[:-1])
            assert parts == (found["all"][column] or 0), f"{column}\n{said}"
    left_out = re.search(r"more rows?, (\d+)% together", said)
    shares = sum(row["%"] for row in time) + (int(left_out[1]) if left_out else 0)
    assert abs(shares - 100) < 0.5 + 0.05 * len(time) + 0.1, f"{shares}\n{said}"
