from __future__ import annotations

from layerstep.arguments import Condition, Flag, Given, Keyword, Number, Where
from layerstep.commands.break_ import condition_of
from layerstep.engine.points import Record
from layerstep.engine.recorder import Recorder
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.module_paths.where import Where as WherePattern
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.tensors.format import human_bytes
from layerstep.views import Column, Table, View


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

    When a module of WHERE has finished, layerstep keeps the statistics of its output, in every N-th forward.
    With `--tensors` it also keeps a copy, and the inputs stay in view until the next forward. `history PATH`
    shows the trend, `out@-1` is the output one recorded forward ago, `leaks` finds outputs that are still
    alive. The oldest are dropped beyond `config track_bytes` and `max_tracked_tensors`. A recording is a
    point: `info breaks` lists it, `delete N` ends it. Without WHERE, `record` lists what is recorded.
    """
    if not given.typed:
        return _recorded(session)
    if not given.where:
        raise BadArguments("record needs WHERE")
    options = [f"every {given.every}"] if given.every > 1 else []
    recorder = Recorder(session.run, every=given.every, with_tensors=given.tensors)
    point = session.points.add(
        Record(
            WherePattern.parse(given.where),
            condition=condition_of(given),
            action=recorder,
            at_exit=None if given.tensors else recorder.at_exit,
            options=" ".join([*options, *(["--tensors"] if given.tensors else [])]),
        )
    )
    session.intake.set_or_leave_pending(point)
    return confirmation(point, f" {point.options}".rstrip())


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
