"""Programs of other packages, bare and debugged: their stdout stays the same, and nothing of ours fails.

`make test-apps` installs the packages into an environment of its own and runs this. Weights are random.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))

LOOK = """
tbreak type:Linear
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


@functools.cache
def bare(program: Path) -> str:
    """What the program prints by itself."""
    done = run([sys.executable, str(program)], HERE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(command: list[str], folder: Path, lines: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONWARNINGS": "ignore", "CI": ""}
    env |= {"LAYERSTEP_CONFIG": str(folder / "config.toml"), "LAYERSTEP_STATE": str(folder / "state")}
    return subprocess.run(
        command, cwd=folder, env=env, input=lines, capture_output=True, text=True, timeout=300
    )


def debugged(program: Path, lines: str, folder: Path) -> str:
    """What the debugger says while it runs the program; the program's own output must be as it was."""
    done = run([sys.executable, "-m", "layerstep", "run", str(program)], folder, lines)
    assert done.stdout == bare(program), done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]
    assert "a bug in layerstep" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def named(program: Path) -> str:
    return program.stem


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_looking_and_dumping(program: Path, tmp_path: Path) -> None:
    said = debugged(program, LOOK, tmp_path)
    assert "tbreak 1" in said or "break 1" in said
    core = tmp_path / "stop.lscore"
    assert core.exists(), said
    opened = [sys.executable, "-m", "layerstep", "open", str(core)]
    done = run(opened, tmp_path, "where\nstats --params\nquit\n")
    assert done.returncode == 0 and "Traceback" not in done.stderr + done.stdout, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_catching_and_recording(program: Path, tmp_path: Path) -> None:
    debugged(program, WATCH, tmp_path)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_profiling(program: Path, tmp_path: Path) -> None:
    assert "step" in debugged(program, "profile 2 --report\ncontinue", tmp_path)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_memory(program: Path, tmp_path: Path) -> None:
    assert "memory" in debugged(program, "memory 2\ncontinue", tmp_path)
