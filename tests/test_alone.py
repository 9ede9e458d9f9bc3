"""What counts every tensor of the process is tested alone: other tests leave theirs behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["leaks", "memory_library"])
def test_alone(name: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / "alone" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout[-4000:]
