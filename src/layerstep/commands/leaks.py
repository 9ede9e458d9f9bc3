from __future__ import annotations

import time

import torch

from layerstep.analysis.holders import holder_of
from layerstep.analysis.shapes import shape_line
from layerstep.analysis.tensor import summarize
from layerstep.analysis.words import human_bytes
from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

MOST = 50
SECONDS = 5.0
"""Then no more holders are searched for: each search goes through every object of the process."""


@command("leaks", group="cost", examples=("leaks",))
def leaks(session: Session, rest: str) -> View:
    """List recorded outputs that have outlived their forward.

    `record WHERE` notes what each forward makes; an output that outlives its forward is listed with its
    bytes and with what holds it: a variable, an attribute, a container, or the autograd graph behind another
    tensor (a list of losses that were never detached). What several layers return is one tensor, and counts
    once in the sum.
    """
    entries = session.recordings.everything()
    if not entries:
        return Notice("nothing is recorded", "`record **` notes what each forward makes")
    current = max(entry.forward for entry in entries)
    owned = _owned(session)
    alive: dict[str, list[torch.Tensor]] = {}
    for entry in entries:
        for tensor in (reference() for reference in entry.alive):
            if tensor is not None and entry.forward < current and id(tensor) not in owned:
                alive.setdefault(entry.path, []).append(tensor)
    del entries
    return _table(alive, current)


def _owned(session: Session) -> set[int]:
    """Parameters and buffers stay; that is no leak."""
    roots = [root for model in session.models if (root := model.root) is not None]
    return {id(t) for root in roots for t in (*root.parameters(), *root.buffers())}


def _table(alive: dict[str, list[torch.Tensor]], current: int) -> View:
    rows: list[tuple[str, ...]] = []
    with observing():
        sizes = {id(t): summarize(t, limit=0).nbytes or 0 for tensors in alive.values() for t in tensors}
        end, holders = time.monotonic() + SECONDS, dict[int, str]()
        for path, tensors in list(alive.items())[:MOST]:
            first = tensors[0]
            if id(first) not in holders and time.monotonic() < end:
                holders[id(first)] = holder_of(first)
            size = human_bytes(sum(sizes[id(tensor)] for tensor in tensors))
            holder = holders.get(id(first), "not searched for: it takes too long")
            rows.append((path, str(len(tensors)), shape_line(first), size, holder))
    if not rows:
        return Notice(f"no recorded output outlived its forward, up to forward {current}", level="good")
    columns = (
        Column("path", "path"),
        Column("alive", right=True),
        Column("first"),
        Column("bytes", right=True),
        Column("held by", "warn"),
    )
    word = "tensor" if len(sizes) == 1 else "tensors"
    note = f"{len(sizes):,} {word} of earlier forwards, {human_bytes(sum(sizes.values()))}"
    if len(alive) > MOST:
        note += f"; {len(alive) - MOST:,} more paths"
    return Table(columns, tuple(rows), note=note)
