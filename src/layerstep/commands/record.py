from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import torch

from layerstep.arguments import Condition, Flag, Given, Keyword, Number, Where
from layerstep.calls.stack import Frame
from layerstep.commands.break_ import condition_of
from layerstep.engine.points import Record
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.expressions.recordings import Recorded
from layerstep.module_paths.where import Where as WherePattern
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.tensors.clones import clone_of
from layerstep.tensors.format import human_bytes
from layerstep.tensors.kinds import bytes_of
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.summary import Summary, summarize
from layerstep.views import Column, Table, View

MOST_TENSORS = 8
"""Of one output; a cache with a tensor for each layer is not recorded whole."""


@command(
    "record",
    group="keep",
    args=(
        Where(optional=True),
        Keyword("every", Number("N", least=1, default=1)),
        Flag("tensors"),
        Condition(),
    ),
    examples=("record blocks.*.attn", "record head every 10 --tensors", "record"),
)
def record(session: Session, given: Given) -> View:
    """Keep statistics of layers over the forwards.

    Whenever a module of WHERE has finished, in every N-th forward, the statistics of its output are kept;
    with `--tensors` a copy of it too, and what it was called with stays in view until the next forward.
    `history PATH` shows the trend, `out@-1` is the output one recorded forward ago, `leaks` finds outputs
    that are still alive. The oldest are dropped beyond `config track_bytes` and `max_tracked_tensors`.
    A recording is a point: `info breaks` lists it, `delete N` ends it. Without WHERE: what is recorded.
    """
    if not given.typed:
        return _recorded(session)
    if not given.where:
        raise BadArguments("record needs WHERE")
    options = [f"every {given.every}"] if given.every > 1 else []
    point = session.points.add(
        Record(
            WherePattern.parse(given.where),
            condition=condition_of(given),
            action=_recorder(session, every=given.every, with_tensors=given.tensors),
            options=" ".join([*options, *(["--tensors"] if given.tensors else [])]),
        )
    )
    session.intake.set_or_leave_pending(point)
    return confirmation(point, f" {point.options}".rstrip())


def _recorder(session: Session, *, every: int, with_tensors: bool) -> Callable[[Frame], None]:
    def measure(frame: Frame) -> None:
        assert frame.module is not None
        owner = session.run.models.owner_of(frame.module)
        forward = owner.forwards if owner is not None else 0
        if with_tensors:
            session.run.seen_calls.keep(frame.module, frame.args, frame.kwargs, frame.output)
        if (forward - 1) % every:
            return
        leaves = tensors_in(frame.output, most=MOST_TENSORS)
        limit = session.run.config.sample_above
        facts = tuple((place, summarize(tensor, limit=limit, brief=True)) for place, tensor in leaves)
        copies = _copies(session, leaves, facts) if with_tensors else {}
        session.run.recordings.add(
            Recorded(
                path=frame.path.partition("|")[0],
                forward=forward,
                facts=facts,
                value=_value(copies),
                nbytes=sum(bytes_of(copies[place], fact.layout) for place, fact in facts if place in copies),
                alive=[weakref.ref(tensor) for _, tensor in leaves],
            )
        )

    return measure


def _copies(
    session: Session, leaves: list[tuple[str, torch.Tensor]], facts: tuple[tuple[str, Summary], ...]
) -> dict[str, torch.Tensor]:
    """What has values to copy and fits: freed, vmapped and fake tensors have none."""
    found: dict[str, torch.Tensor] = {}
    left = session.run.recordings.budget
    for (place, tensor), (_, summary) in zip(leaves, facts, strict=True):
        size = summary.nbytes if summary.stats is not None else None
        if size is not None and size <= left:
            left -= size
            with contextlib.suppress(Exception):  # some kinds can be read and not copied: four bits, say
                found[place] = clone_of(tensor)
    return found


def _value(copies: dict[str, torch.Tensor]) -> object:
    """One tensor as itself; several by the place that each has in the output."""
    return copies.get("", copies) or None if len(copies) != 1 else next(iter(copies.values()))


def _recorded(session: Session) -> Table:
    recordings = session.run.recordings
    rows = []
    for path in recordings.paths[: session.run.config.max_lines]:
        entries = recordings.of(path)
        copies = sum(entry.value is not None for entry in entries)
        forwards = f"{entries[0].forward}–{entries[-1].forward}"
        rows.append((path, str(len(entries)), forwards, str(copies)))
    word = "entry" if len(recordings) == 1 else "entries"
    note = f"{len(recordings):,} {word}, {human_bytes(recordings.nbytes)}"
    if recordings.dropped:
        note += f"; {recordings.dropped:,} older ones were dropped"
    if not rows:
        note = "nothing is recorded; `record WHERE` begins"
    columns = (
        Column("path", "path"),
        Column("entries", right=True),
        Column("forwards", right=True),
        Column("tensors", right=True),
    )
    return Table(columns, tuple(rows), note=note)
