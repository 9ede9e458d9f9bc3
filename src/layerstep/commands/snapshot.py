from __future__ import annotations

import time
from collections.abc import Iterable

from layerstep.arguments import Given, Word
from layerstep.engine.session import Session
from layerstep.history.snapshots import StateSnapshots
from layerstep.registry import command
from layerstep.tensors.format import human_bytes
from layerstep.views import Column, Notice, Table, View


def _names(session: Session) -> Iterable[str]:
    return list(session.instruments.get(StateSnapshots).by_name)


@command(
    "snapshot",
    group="keep",
    args=Word("NAME", optional=True),
    examples=("snapshot", "snapshot good"),
    whole_word=True,
)
def snapshot(session: Session, given: Given) -> Notice:
    """Keep the state of the training, to restore it later.

    It keeps weights, buffers, optimizers, schedulers, gradient scalers and the random streams, on any device.
    Without NAME it gets the next number. `restore NAME` puts it back. `config snapshot_bytes` limits what all
    snapshots may hold. `history on` keeps the whole program instead.
    """
    taken = session.instruments.get(StateSnapshots).take(given.name)
    return Notice(
        f"snapshot {taken.name}: the state after {taken.step} training steps, {human_bytes(taken.size)}",
        f"`restore {taken.name}` puts it back",
        level="good",
    )


@command(
    "restore",
    group="keep",
    args=Word("NAME", optional=True, completes=_names),
    examples=("snapshot good\nrestore good", "snapshot\nrestore"),
    needs_pause=True,
    whole_word=True,
)
def restore(session: Session, given: Given) -> View:
    """Put back the state that `snapshot` kept; or list them.

    It writes the values into the existing tensors. The program does not go back: its variables keep their
    values, and it goes on with its next batch. In the middle of a training step, the state is put back when
    that step has ended, because the backward still needs the weights. `perturbed?` lists it.
    """
    kept = session.instruments.get(StateSnapshots)
    if not given.name:
        return _table(kept)
    found = kept.find(given.name)
    state = f"the state after {found.step} training steps"
    goes_on = "the script goes on with its next batch; `perturbed?` lists this"
    if kept.restore(found):
        return Notice(f"snapshot {found.name} is restored: {state}", goes_on, level="good")
    text = f"snapshot {found.name} is restored at the end of this training step: {state}"
    return Notice(text, goes_on, level="good")


def _table(kept: StateSnapshots) -> Table:
    columns = (
        Column("snapshot", "key"),
        Column("steps done", right=True),
        Column("age", right=True),
        Column("memory", right=True),
    )
    now = time.time()
    rows = tuple(
        (each.name, str(each.step), f"{now - each.taken:.0f} s", human_bytes(each.size))
        for each in kept.by_name.values()
    )
    return Table(columns, rows, note="" if rows else "no snapshots; `snapshot` takes one")
