"""Costs that nobody asked for are shown when the run is over; those that were asked for are not again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import quick_python

SCRIPT = Path(__file__).parents[2] / "examples" / "costs" / "item_sync.py"
REPORT, MEMORY, LEAKS = "own ms", "autograd held", "nothing piles up"


def batch(*lines: str) -> str:
    options = [word for line in lines for word in ("-e", line)]
    done = quick_python.run(
        ["-m", "layerstep", "run", "--batch", *options, SCRIPT],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "120"},
    )
    assert "loss" in done.stdout and REPORT not in done.stdout, "the program's output is its own"
    return done.stderr


def test_what_nobody_asked_for_is_shown_at_the_end() -> None:
    said = batch("profile on", "memory on", "leaks on")
    assert [said.count(each) for each in (REPORT, MEMORY, LEAKS)] == [1, 1, 1], said


@pytest.mark.long
def test_what_was_asked_for_is_not_shown_again_and_what_came_too_short_is() -> None:
    assert batch("profile 3 --report").count(REPORT) == 1
    said = batch("profile 500 --advice")
    assert "item_sync.py:14" in said and REPORT not in said, "the advice that was asked for, of fewer steps"
