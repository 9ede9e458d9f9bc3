from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType

from layerstep.arguments import Choice, Given
from layerstep.calls.events import Phase
from layerstep.engine.point import Point
from layerstep.engine.points import Catch
from layerstep.engine.session import Session
from layerstep.engine.threads import places
from layerstep.errors import UserError
from layerstep.points.description import described
from layerstep.points.silence import defined, silence_of
from layerstep.process.frames import function_label, location_of
from layerstep.registry import command
from layerstep.tensors.present import brief
from layerstep.views import Column, Fields, Notice, Span, Table, Text, View

__all__ = ["breaks"]


@command(
    "info",
    group="stop",
    args=Choice("breaks|locals|models|threads|backward|cost", default="breaks", name="topic"),
    examples=("info breaks", "info locals", "info models", "info threads", "info backward", "info cost"),
    at_once=True,
    only_looks=True,
)
def info(session: Session, given: Given) -> View:
    """List points, variables, models, threads, backward, or cost.

    `info breaks` says how often each point was hit, or why it was not. `info backward` lists the modules that
    the last backward pass did not go through, and why. `info threads` says which module each thread is in,
    and whether it runs, is paused, or waits for its turn to stop.
    """
    topics: dict[str, Callable[[Session], View]] = {
        "breaks": breaks,
        "locals": _locals,
        "models": _models,
        "threads": _threads,
        "backward": _backward,
        "cost": _cost,
    }
    return topics[given.topic](session)


def breaks(session: Session) -> Table:
    columns = (
        Column("no", right=True),
        Column("what", "code"),
        Column("where", "path"),
        Column("hits", right=True),
        Column("state"),
    )
    rows = tuple(_point(session, point) for point in session.points.shown)
    return Table(columns, rows, note="" if rows else "no points; `break WHERE` sets one")


def _point(session: Session, point: Point) -> tuple[str, ...]:
    phase = f" {point.phase}" if point.phase is not Phase.EXIT else ""
    caught = f" {point.what}" if isinstance(point, Catch) else ""
    what = f"{point.kind}{caught}{phase}{' once' if point.temporary else ''}"
    notes = []
    if point.condition is not None:
        notes.append(f"if {point.condition.text}")
    if point.ignore:
        notes.append(f"ignored {point.ignore} more times")
    if point.commands:
        notes.append(f"then {'; '.join(point.commands)}")
    if reason := silence_of(session, point):
        notes.append(reason)
    return (str(point.number), what, described(point), str(point.hits), "\n".join(notes))


def _locals(session: Session) -> View:
    """The variables of the function that runs here, the newest last; a tensor is its line."""
    frame = session.run.pause.frame if session.run.pause is not None else None
    running = frame.python if frame is not None else None
    if running is None:
        raise UserError("no function is running here", "`continue` to a stop")
    shown = [(name, value) for name, value in running.f_locals.items() if not name.startswith("__")]
    shown = [(name, value) for name, value in shown if not _is_definition(value)]
    most = session.run.config.max_lines // 2
    limit = session.run.config.sample_above
    items = [(name, brief(value, limit=limit)) for name, value in shown[:most]]
    if len(shown) > most:
        items.append(("…", Text(f"{len(shown) - most} more")))
    return Fields(
        (Span(function_label(running), "key"), Span(f"{len(shown)} variables", "dim")), tuple(items)
    )


def _is_definition(value: object) -> bool:
    """At the top of a file its imports, functions and classes are variables, too."""
    return isinstance(value, ModuleType | FunctionType | BuiltinFunctionType | type)


def _backward(session: Session) -> View:
    """Which modules the backward pass was seen to go through."""
    backpass = session.backward_pass
    if not backpass.graph.calls:
        hint = "`break WHERE backward` does that, from the next forward on"
        return Notice("no forward was noted for a backward pass", hint)
    modules = [
        (path, module)
        for path, module in session.run.models.everything()
        if "forward" in defined(type(module))
    ]
    unseen = [(path, reason) for path, module in modules if (reason := backpass.why_unseen(module))]
    seen = sum(backpass.seen(module) > 0 for _, module in modules)
    most = session.run.config.max_lines
    note = f"{seen} modules were gone through in the last backward pass"
    note += f"; {len(unseen) - most:,} more were not" if len(unseen) > most else ""
    return Table((Column("not seen", "path"), Column("because")), tuple(unseen[:most]), note=note)


def _models(session: Session) -> Table:
    columns = (
        Column("name", "path"),
        Column("type", "type"),
        Column("modules", right=True),
        Column("parameters", right=True),
        Column("forwards", right=True),
        Column("notes"),
    )
    rows = []
    for model in session.run.models:
        root = model.root
        if root is None:
            continue
        sizes = [getattr(p, "numel", lambda: 0) for p in root.parameters()]
        count = sum(_numel(size) for size in sizes)
        notes = [
            note
            for note, holds in (("compiled", model.compiled), ("no parameters", model.is_helper))
            if holds
        ]
        notes.append("training" if root.training else "eval")
        rows.append(
            (
                model.name,
                type(root).__name__,
                str(len(model.names)),
                f"{count:,}",
                str(model.forwards),
                ", ".join(notes),
            )
        )
    return Table(columns, tuple(rows), note="" if rows else "no model has run yet")


def _threads(session: Session) -> Table:
    found = places(session.run, session.turns)
    most = session.run.config.max_lines
    rows = tuple(
        (
            place.name,
            place.path or "no module",
            place.state,
            location_of(place.frame) if place.frame is not None else "",
        )
        for place in found[:most]
    )
    note = "a stop holds one thread; the others run on until they come to a stop of their own"
    if len(found) > most:
        note = f"{len(found) - most:,} more threads; {note}"
    columns = (Column("thread"), Column("in", "path"), Column("state"), Column("at"))
    return Table(columns, rows, note=note if len(found) > 1 else "the program has one thread")


def _numel(read: Callable[[], int]) -> int:
    try:
        return read()
    except Exception:  # a lazy parameter has no size yet
        return 0


def _cost(session: Session) -> Table:
    arming = session.installation
    rows = []
    if len(arming.taps):
        active = [point for point in session.points if point.enabled and not point.is_pending]
        points = "1 point" if len(active) == 1 else f"{len(active)} points"
        why = f"{points} and the modules around" if active else session.run.intent.kind.value
        rows.append(
            (
                "taps",
                f"{len(arming.taps)} hooks on {arming.taps.modules} modules",
                why,
                "about 1 µs a hook and call",
            )
        )
    if session.intake.discovery.is_on:
        rows.append(
            (
                "discovery",
                "nn.Module.__call__ with one look-up more",
                "finds models as they are called",
                "about 0.2 µs a call",
            )
        )
    has_compiled = arming.has_compiled_code
    if arming.is_eager:
        rows.append(
            (
                "stance",
                "torch.compile runs eagerly" if has_compiled else "torch.compile would run eagerly",
                "hooks do not fire in compiled code",
                "the speed of eager",
            )
        )
    for instrument in session.instruments:
        rows += [("instrument", words, "", "") for words in instrument.cost()]
    if session.interrupts.is_on:
        rows.append(("Ctrl-C", "a SIGINT handler", "stops at the next module", "nothing"))
    columns = (Column("installed"), Column("what"), Column("why"), Column("cost"))
    return Table(
        columns,
        tuple(rows),
        note="" if rows else "nothing is installed: the run costs what it costs without layerstep",
    )
