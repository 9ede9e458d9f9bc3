"""A short run of chaos; `make chaos` is the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import layerstep

PROGRAMS = 15


def test_random_lines_at_random_stops_change_no_bit_and_end_no_run() -> None:
    """In processes of its own: a death or a hang names its seed."""
    source = str(Path(layerstep.__file__).parents[1])  # the workers run in another folder
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "--programs", str(PROGRAMS), "--first", "200"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PROGRAMS} programs, " in done.stdout
