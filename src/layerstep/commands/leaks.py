from __future__ import annotations

import torch

from layerstep.analysis.holders import holder_of
from layerstep.analysis.shapes import shape_line
from layerstep.analysis.words import human_bytes
from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

MOST = 50


@command("leaks", group="cost", examples=("leaks",))
def leaks(session: Session, rest: str) -> View:
    """List recorded outputs that have outlived their forward.

    `record WHERE` notes what each forward makes; an output that outlives its forward is listed with its
    bytes and with what holds it: a variable, an attribute, a container, or the autograd graph behind another
    tensor (a list of losses that were never detached).
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
    total = 0
    with observing():
        for path, tensors in list(alive.items()):
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            total += size
            if len(rows) < MOST:
                cells = (path, str(len(tensors)), shape_line(tensors[0]), human_bytes(size))
                rows.append((*cells, holder_of(tensors[0])))
    if not rows:
        return Notice(f"no recorded output outlived its forward, up to forward {current}", level="good")
    columns = (
        Column("path", "path"),
        Column("alive", right=True),
        Column("first"),
        Column("bytes", right=True),
        Column("held by", "warn"),
    )
    count = sum(map(len, alive.values()))
    return Table(columns, tuple(rows), note=f"{count} tensors of earlier forwards, {human_bytes(total)}")
