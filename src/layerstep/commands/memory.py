from __future__ import annotations

from collections.abc import Callable, Iterable

from layerstep.arguments import Form, Given, Number, Path, Word
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.memory.devices import devices
from layerstep.memory.forecast import forecast
from layerstep.memory.meter import meter_of
from layerstep.memory.now import KEPT, look
from layerstep.memory.step import MeasuredStep
from layerstep.memory.views import (
    MemoryShown,
    Snapshots,
    device_lines,
    difference,
    modules,
    step_lines,
    summary,
    timeline,
)
from layerstep.registry import command
from layerstep.tensors.format import human_bytes
from layerstep.tensors.observing import observing
from layerstep.views import Group, Notice, Text, View

ROWS = 20


def _names(session: Session) -> Iterable[str]:
    """Of the snapshots that are kept."""
    return list(_snapshots(session))


@command(
    "memory",
    group="cost",
    args=(
        Path(optional=True),
        Form("", Number("N", least=1, what="number of steps")),
        Form("on"),
        Form("off"),
        Form("timeline"),
        Form("devices"),
        Form("snapshot", Word("NAME", what="a name")),
        Form("diff", Word("A", completes=_names), Word("B", optional=True, completes=_names)),
    ),
    examples=(
        "memory",
        "memory blocks.1",
        "memory 2",
        "memory on",
        "memory devices",
        "memory snapshot loaded\nmemory diff loaded",
    ),
)
def memory(session: Session, given: Given) -> View:
    """Show where memory goes, module by module.

    `memory` shows parameters, gradients, optimizer state and the process as they are now. `memory PATH` shows
    one module only.
    `memory N` measures the next N training steps, or forwards of the main model if there is no optimizer.
    `memory on` measures every step. `memory` then also shows the peak, what autograd saved for the backward,
    what was temporary, and what a batch twice as large would need.
    `memory timeline` draws the last measured step.
    `memory snapshot NAME` keeps a list of what is alive now.
    `memory diff A B` compares two snapshots. Without B it compares A with now.

    Saved is what autograd holds when the backward begins, exact to the byte. Each piece of memory counts
    once, for the module that saved it first. Parameters and inputs that autograd holds are listed apart,
    because they are there anyway. Temporary is everything else that was alive at the peak. Memory that a
    kernel takes for itself is not seen, nor memory that compiled code takes and frees again.
    """
    if given.form:
        return _ACTS[given.form](session, given)
    if given.n is not None:
        return _start(session, given.n)
    return _inside(session, given.path) if given.path else _everything(session)


def _everything(session: Session) -> View:
    step = _last(session)
    with observing():
        now = look(session)
        views: list[View] = []
        if now.paths or step is not None:
            views.append(modules(now, step, inside=lambda path: True, most=_rows(session)))
        lines = []
        if step is not None:
            lines += step_lines(step, forecast(meter_of(session).steps))
        if now.others:
            text = f"{human_bytes(now.others)} in {now.other_tensors:,} that Python knows of"
            lines.append(("other tensors", Text(text)))
        lines += device_lines(devices())
    views.append(summary(lines, f"memory: {human_bytes(sum(map(now.total, KEPT)))} kept by models now"))
    if not now.paths and step is None:
        views.append(
            Notice("no model has run yet" if not session.run.models.had_any else "the models are gone")
        )
    if step is None and not meter_of(session).is_on:
        hint = "the peak, what autograd saves, what is temporary, the need of a larger batch"
        views.append(Notice("`memory 1` measures the next step", hint))
    elif meter_of(session).is_on:
        views.append(Notice("measuring", "`memory off` ends it"))
    return Group(tuple(views))


def _inside(session: Session, text: str) -> View:
    """Only what is deterministic: no process, no other tensors."""
    path, module = session.run.models.find(text)
    own = set(session.run.models.paths_of(module)) | {path}
    owner = session.run.models.owner_of(module)
    is_root = owner is not None and owner.root is module

    def is_inside(other: str) -> bool:
        return is_root or any(other == each or other.startswith(f"{each}.") for each in own)

    step = _last(session)
    with observing():
        table = modules(look(session), step, inside=is_inside, most=_rows(session))
    if step is None or not is_root:
        return table
    lines = step_lines(step, forecast(meter_of(session).steps))
    return Group((table, summary(lines, f"memory of {path}")))


def _rows(session: Session) -> int:
    return min(ROWS, session.run.config.max_lines)


def _last(session: Session) -> MeasuredStep | None:
    meter = meter_of(session)
    meter.is_read = True
    return meter.steps[-1] if meter.steps else None


def _start(session: Session, steps: int | None) -> Notice:
    meter_of(session).start(steps)
    count = "every step" if steps is None else "the next step" if steps == 1 else f"the next {steps:,} steps"
    return Notice(
        f"measuring memory in {count}",
        "an optimizer's step() ends a step, a forward where none is; `memory` shows it",
        level="good",
    )


def _on(session: Session, given: Given) -> Notice:
    return _start(session, None)


def _off(session: Session, given: Given) -> Notice:
    meter = meter_of(session)
    if not meter.is_on:
        return Notice("memory is not being measured")
    meter.stop()
    return Notice(f"measuring is off; {len(meter.steps):,} steps are kept", level="good")


def _timeline(session: Session, given: Given) -> View:
    step = _last(session)
    if step is None:
        return Notice("no step is measured", "`memory 1` measures the next")
    if not step.course:
        return Notice("the step has too many operations for a timeline")
    return timeline(step)


def _devices(session: Session, given: Given) -> View:
    found = devices()
    lines = device_lines(found)
    if len(found) == 1:
        lines.append(("", Text("no accelerator is here")))
    return summary(lines, "devices")


def _snapshots(session: Session) -> dict[str, MemoryShown]:
    return session.instruments.get(Snapshots).by_name


def _take(session: Session) -> MemoryShown:
    with observing():
        return MemoryShown(look(session), tuple(devices()))


def _snapshot(session: Session, given: Given) -> View:
    _snapshots(session)[given.name] = _take(session)
    return Notice(f"snapshot {given.name} is kept", f"`memory diff {given.name}` compares it with now")


def _diff(session: Session, given: Given) -> View:
    kept = _snapshots(session)
    for name in filter(None, (given.a, given.b)):
        if name not in kept:
            raise UserError(
                f"there is no snapshot {name!r}",
                f"`memory snapshot {name}` takes one" if not kept else f"there are: {', '.join(kept)}",
            )
    other = kept[given.b] if given.b else _take(session)
    return difference((given.a, given.b or "now"), kept[given.a], other, most=_rows(session))


_ACTS: dict[str, Callable[[Session, Given], View]] = {
    "on": _on,
    "off": _off,
    "timeline": _timeline,
    "devices": _devices,
    "snapshot": _snapshot,
    "diff": _diff,
}
