from __future__ import annotations

import math

from layerstep.arguments import Form, Given, Keyword, Number, Path
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.expressions.recordings import Recorded
from layerstep.history.history import EVERY, KEEP, History
from layerstep.history.views import checkpoint_table
from layerstep.registry import command
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import number, share
from layerstep.tensors.summary import Summary
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

ROWS = 20
HEAD = 6  # lines above the table


@command(
    "history",
    group="keep",
    args=(
        Form("", Path(optional=True), Number("N", least=0, default=ROWS, what="count")),
        Form(
            "on",
            Keyword("every", Number("N", least=1, default=EVERY, what="number of training steps")),
            Keyword("keep", Number("K", least=1, most=64, default=KEEP, what="number of checkpoints")),
        ),
        Form("off"),
    ),
    examples=("history", "history 5", "history on every 10", "history off"),
)
def history(session: Session, given: Given) -> View:
    """Keep checkpoints of the run; show a trend, or typed lines.

    `history on` takes a checkpoint at the end of each training step: a fork of the whole process, which
    waits. `back step` goes back to one. `every N` takes one at every Nth step. `keep K` keeps at most K (8):
    those about 1, 2, 4, 8 … back. `history` then lists them, with the memory that each holds alone. This
    works on Linux, on the CPU, in a program with one thread and without worker processes. Elsewhere it is
    refused. `history off` lets go of all checkpoints.

    `history PATH` shows how the statistics of a module's output went over the forwards that `record` has
    kept, as sparklines and as a table of the last N. `history N` lists the last N lines typed in this
    session. Without checkpoints, `history` lists the last 20.
    """
    checkpoints = session.instruments.get(History)
    if given.form == "on":
        return _start(session, checkpoints, given)
    if given.form == "off":
        count = checkpoints.stop()
        return Notice(f"history is off; {count} checkpoints are let go", level="good")
    if checkpoints.is_on and not given.typed:
        return _checkpoints(session, checkpoints)
    name, count = given.path, given.n
    if given.typed in session.run.recordings.paths:  # a layer may be called 0
        name, count = given.typed, ROWS
    count = min(max(1, count), max(1, session.run.config.max_lines - HEAD))
    if name:
        path, _ = session.run.models.find(name)
        return _trend(session, path, count)
    first = max(len(session.prompt.history) - count, 0)
    rows = tuple((str(i + 1), line) for i, line in enumerate(session.prompt.history[first:], start=first))
    return Table((Column("no", right=True), Column("line", "code")), rows)


def _start(session: Session, history: History, given: Given) -> Notice:
    history.start(given.every, given.keep)
    each = "each training step" if given.every == 1 else f"every {given.every} training steps"
    return Notice(
        f"a checkpoint after {each} from now on, at most {given.keep}; `back step` goes back",
        "open files are shared with them: after that, logs have the same steps twice",
        level="good",
    )


def _checkpoints(session: Session, history: History) -> View:
    if not history.checkpoints:
        return Notice("no checkpoint yet", history.trouble or "the first is taken when a training step ends")
    return checkpoint_table(history.checkpoints, done=session.run.training.count)


def _trend(session: Session, path: str, count: int) -> View:
    entries = [entry for entry in session.run.recordings.of(path) if entry.facts]
    if not entries:
        raise UserError(f"nothing of {path} is recorded", f"`record {path}` begins with the next forward")
    firsts = [_first(entry) for entry in entries]
    lines = [
        (name, Text(f"{sparkline(values)}  {_figure(values[0])} → {_figure(values[-1])}".strip()))
        for name, values in (
            (name, [_value(summary, name) for summary in firsts]) for name in ("mean", "std", "min", "max")
        )
    ]
    span = f"forwards {entries[0].forward} to {entries[-1].forward}, {len(entries)} recorded"
    head = Fields((Span(path, "path"), Span(span, "dim")), tuple(lines))
    return Group((head, _table(entries[-count:])))


def _first(entry: Recorded) -> Summary:
    summary: Summary = entry.facts[0][1]
    return summary


def _value(summary: Summary, name: str) -> float:
    value = getattr(summary.stats, name) if summary.stats is not None else None
    return float("nan") if value is None else float(value)


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else number(value)  # of what has no finite value there is none


def _table(entries: list[Recorded]) -> Table:
    columns = tuple(
        Column(name, right=True)
        for name in ("forward", "mean", "std", "min", "max", "nan", "inf", "zero", "alive")
    )
    rows = []
    for entry in entries:
        summary = _first(entry)
        stats = summary.stats
        alive = "yes" if any(ref() is not None for ref in entry.alive) else "no"
        values = [_figure(_value(summary, name)) for name in ("mean", "std", "min", "max")]
        counts = ["-"] * 3
        if stats is not None:
            zero = share(stats.zero, stats.sampled or stats.count)
            counts = [str(stats.nan), str(stats.posinf + stats.neginf), zero]
        rows.append((str(entry.forward), *values, *counts, alive))
    return Table(columns, tuple(rows))
