"""The checkpoints of a run, as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence

from layerstep.history.checkpoint import Checkpoint
from layerstep.tensors.format import human_bytes
from layerstep.views import Column, Table

__all__ = ["checkpoint_table"]


def checkpoint_table(checkpoints: Sequence[Checkpoint], *, done: int, note: str = "") -> Table:
    """One row for each, the newest first; `done`: the training steps that are done now."""
    columns = (
        Column("beginning of step", right=True),
        Column("back", right=True),
        Column("age", right=True),
        Column("memory", right=True),
    )
    now = time.time()
    rows = tuple(
        (
            str(each.step + 1),
            f"{done - each.step}",
            _age(now - each.taken),
            human_bytes(each.own_bytes),
        )
        for each in reversed(checkpoints)
    )
    return Table(columns, rows, note=note)


def _age(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
