from __future__ import annotations

import math

from layerstep.arguments import Given
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.gradients.flow import Health
from layerstep.gradients.log import WARM_UP, Clipping, GradientEntry, GradientLog, clipping_of
from layerstep.gradients.recorder import GradientRecorder, RecordedGradients
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import number, share
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

__all__ = ["animate", "clip", "log_of", "record", "trend", "warnings_of"]

ROWS = 20
WIDTH = 80
BARS = 24
_NOTHING = Notice(
    "no gradients are recorded", "`grad record` measures them at each training step from now on"
)


def log_of(session: Session) -> GradientLog | None:
    """What `grad record` has kept, if it was ever typed."""
    recorder = session.instruments.get(RecordedGradients).recorder
    return recorder.log if recorder is not None else None


def record(session: Session, given: Given) -> Notice:
    """`grad record [every N] [--updates]`, `grad record off`."""
    kept = session.instruments.get(RecordedGradients)
    before = kept.recorder
    if given.off:
        if before is None or not before.is_on:
            return Notice("gradients are not being recorded")
        before.stop()
        return Notice(f"recording of gradients is off; {len(before.log):,} steps are kept", level="good")
    recorder = GradientRecorder(session, every=given.every, updates=given.updates)
    if before is not None:
        before.stop()
        recorder.log = before.log
    recorder.start()
    kept.recorder = recorder
    steps = "every training step" if recorder.every == 1 else f"one training step in {recorder.every:,}"
    return Notice(
        f"recording the gradients of {steps}{', and updates' * recorder.updates}",
        "an optimizer's step() is a training step; `grad trend`, `grad animate`, `grad clip` show them",
        level="good",
    )


def warnings_of(session: Session) -> list[str]:
    """What was found while recording that concerns every view of it."""
    log = log_of(session)
    if log is None or log.stale is None:
        return []
    name, since = log.stale
    return [
        f"gradients are not cleared between the steps: {name}.grad is only added to since step {since}; "
        "is zero_grad() missing?"
    ]


def trend(session: Session, path: str) -> View:
    """`grad trend [PATH]`."""
    log = log_of(session)
    if log is None or not len(log):
        return _NOTHING
    return _trend_of(session, log, path) if path else _trends(session, log)


def _trends(session: Session, log: GradientLog) -> Table:
    rows = []
    layers = log.layers
    flow = log.flow()
    summary = flow.summary_report()
    flags = {
        name: word
        for word, names in (
            ("vanishing", summary.layers_with_vanishing_grads),
            ("exploding", summary.layers_with_exploding_grads),
            ("not finite", summary.layers_with_nonfinite_grads),
        )
        for name in names
    }
    for layer in layers[: session.run.config.max_lines]:
        norms = [entry.size.norm for entry in log.of(layer)]
        if norms:
            rows.append((layer, sparkline(norms, width=BARS), *_ends(norms), flags.get(layer, "")))
    columns = (
        Column("layer", "path"),
        Column("norm"),
        *(Column(name, right=True) for name in ("first", "last", "least", "most")),
        Column(""),
    )
    steps = log.steps
    warnings = warnings_of(session)
    health = summary.overall_health
    if warnings and health in (Health.HEALTHY, Health.MINOR_ISSUES):
        health = Health.PROBLEMS_DETECTED  # the sizes are good, what they are added to is not
    notes = [f"steps {steps[0]} to {steps[-1]}, {len(steps)} recorded: {health}"]
    notes += [*summary.recommendations[:-1], *warnings]
    return Table(columns, tuple(rows), note="\n".join(notes))


def _ends(values: list[float]) -> tuple[str, str, str, str]:
    good = [value for value in values if math.isfinite(value)]
    least, most = (min(good), max(good)) if good else (math.nan, math.nan)
    return _figure(values[0]), _figure(values[-1]), _figure(least), _figure(most)


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else number(value)


def _trend_of(session: Session, log: GradientLog, text: str) -> View:
    path = text
    if path not in log.names and path not in log.layers:
        tails = [name for name in (*log.layers, *log.names) if name.endswith("." + text)]
        path = tails[0] if len(tails) == 1 else session.run.models.find(text)[0]
    entries = log.of(path)
    if not entries:
        raise UserError(f"no gradient of {path} was recorded", "`grad none` says why it has none")
    lines = []
    for name, values in _series(entries).items():
        if not all(map(math.isnan, values)):
            ends = f"{_figure(values[0])} → {_figure(values[-1])}"
            lines.append((name, Text(f"{sparkline(values, width=2 * BARS)}  {ends}")))
    span = f"steps {entries[0].step} to {entries[-1].step}, {len(entries)} recorded"
    head = Fields((Span(path, "path"), Span(span, "dim")), tuple(lines))
    return Group((head, _steps(entries[-ROWS:], warnings_of(session))))


def _series(entries: list[GradientEntry]) -> dict[str, list[float]]:
    return {
        "mean |g|": [entry.size.mean for entry in entries],
        "max |g|": [entry.size.most for entry in entries],
        "norm": [entry.size.norm for entry in entries],
        "|Δw|/|w|": [entry.ratio for entry in entries],
    }


def _steps(entries: list[GradientEntry], warnings: list[str]) -> Table:
    columns = tuple(Column(name, right=True) for name in ("step", *_series(entries)))
    rows = tuple(
        (str(entry.step), *(_figure(values[0]) for values in _series([entry]).values())) for entry in entries
    )
    return Table(columns, rows, note="\n".join(warnings))


def animate(session: Session) -> View:
    """`grad animate`."""
    log = log_of(session)
    if log is None or not len(log):
        return _NOTHING
    lines = log.flow().to_ascii_animation(width=WIDTH, order=log.layers).splitlines()
    most = session.run.config.max_lines
    more = [f"… {len(lines) - most:,} more layers"] if len(lines) > most else []
    return Text("\n".join(lines[:most] + more))


def clip(session: Session, bound: float | None) -> View:
    """`grad clip [MAX_NORM]`."""
    log = log_of(session)
    if log is None or not log.totals:
        return _NOTHING
    kinds = {each.number: each.kind for each in session.run.training.optimizers}
    found = {number_: clipping_of(totals) for number_, totals in log.totals.items()}
    rows, notes = [], []
    for number_, clipping in found.items():
        name = f"{number_} {kinds.get(number_, '')}".strip()
        if not clipping.percentiles:
            notes.append(f"optimizer {name}: {len(log.totals[number_])} steps, {WARM_UP + 1} are needed")
            continue
        marks = (_figure(value) for _, value in clipping.percentiles)
        rows.append((name, str(clipping.steps), *marks, _figure(clipping.recommended)))
        notes += _about(clipping, name if len(found) > 1 else "", bound)
    columns = tuple(
        Column(name, right=name != "optimizer")
        for name in ("optimizer", "steps", "p10", "p50", "p90", "p99", "max", "max_norm")
    )
    return Table(columns, tuple(rows), title="total norm of the gradients", note="\n".join(notes))


def _about(clipping: Clipping, name: str, bound: float | None) -> list[str]:
    lead = f"{name}: " if name else ""
    notes = []
    for max_norm in (clipping.recommended, bound):
        if max_norm is not None:
            clipped = clipping.clipped_by(max_norm)
            words = f"{clipped} of {len(clipping.norms)} steps, {share(clipped, len(clipping.norms))}"
            notes.append(f"{lead}max_norm={_figure(max_norm)} would have clipped {words}")
    if clipping.nonfinite:
        notes.append(f"{lead}{clipping.nonfinite} steps whose norm is not finite are left out")
    if clipping.ceiling is not None:
        notes.append(f"{lead}they seem to be clipped at {_figure(clipping.ceiling)} already")
    return notes
