from __future__ import annotations

from collections.abc import Callable

from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.memory.devices import devices
from layerstep.memory.forecast import forecast
from layerstep.memory.meter import meter_of
from layerstep.memory.now import KEPT, look
from layerstep.memory.step import MeasuredStep
from layerstep.memory.views import (
    MemoryShown,
    device_lines,
    difference,
    modules,
    step_lines,
    summary,
    timeline,
)
from layerstep.registry import command
from layerstep.tensors.format import human_bytes
from layerstep.views import Group, Notice, Text, View

ROWS = 20
MEMORY = "memory snapshots"
_WORDS = ("on", "off", "timeline", "devices", "snapshot", "diff")


def _complete(session: Session, text: str) -> list[str]:
    words = text.split(" ")
    if len(words) <= 1:
        return [*_WORDS, *(path for path, _ in session.models.everything())]
    return list(_snapshots(session)) if words[0] == "diff" else []


@command(
    "memory",
    group="cost",
    usage="[PATH] | on | off | N | timeline | devices | snapshot NAME | diff A [B]",
    examples=(
        "memory",
        "memory blocks.1",
        "memory 2",
        "memory on",
        "memory devices",
        "memory snapshot loaded\nmemory diff loaded",
    ),
    complete=_complete,
)
def memory(session: Session, rest: str) -> View:
    """Show where memory goes, module by module.

    Parameters, gradients and optimizer state are known at once, and so is the process. `memory N` measures
    the next N training steps (forwards of the main model without an optimizer), `memory on` all; then
    there is also the peak, what autograd saved for the backward, what was temporary, and what a batch twice
    as large would need. `memory timeline` draws the last measured step. `memory PATH` keeps to a module.

    Saved is what autograd holds when the backward begins, to the byte, each memory once, for the module that
    saved it first; parameters and inputs that it holds are there anyway, and told apart. Temporary is what
    else was alive at the peak. Memory that a kernel takes for itself is not seen, nor what compiled code
    takes and gives back inside.

    `memory snapshot NAME` keeps what is alive now, `memory diff A B` compares two (B left out: now).
    """
    words = rest.split()
    if not words:
        return _everything(session)
    act = _ACTS.get(words[0])
    if act is not None:
        return act(session, words[1:])
    if words[0].isdecimal() and len(words) == 1:
        return _start(session, int(words[0]))
    return _inside(session, rest.strip())


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
        views.append(Notice("no model has run yet" if not session.models.had_any else "the models are gone"))
    if step is None and not meter_of(session).is_on:
        hint = "the peak, what autograd saves, what is temporary, the need of a larger batch"
        views.append(Notice("`memory 1` measures the next step", hint))
    elif meter_of(session).is_on:
        views.append(Notice("measuring", "`memory off` ends it"))
    return Group(tuple(views))


def _inside(session: Session, text: str) -> View:
    """Only what is deterministic: no process, no other tensors."""
    path, module = session.models.find(text)
    own = set(session.models.paths_of(module)) | {path}
    owner = session.models.owner_of(module)
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
    return min(ROWS, session.config.max_lines)


def _last(session: Session) -> MeasuredStep | None:
    meter = meter_of(session)
    meter.is_read = True
    return meter.steps[-1] if meter.steps else None


def _start(session: Session, steps: int | None) -> Notice:
    if steps == 0:
        raise BadArguments("0 steps are nothing to measure", "memory 1")
    meter_of(session).start(steps)
    count = "every step" if steps is None else "the next step" if steps == 1 else f"the next {steps:,} steps"
    return Notice(
        f"measuring memory in {count}",
        "an optimizer's step() ends a step, a forward where none is; `memory` shows it",
        level="good",
    )


def _on(session: Session, words: list[str]) -> Notice:
    _refuse(words)
    return _start(session, None)


def _off(session: Session, words: list[str]) -> Notice:
    _refuse(words)
    meter = meter_of(session)
    if not meter.is_on:
        return Notice("memory is not being measured")
    meter.stop()
    return Notice(f"measuring is off; {len(meter.steps):,} steps are kept", level="good")


def _timeline(session: Session, words: list[str]) -> View:
    _refuse(words)
    step = _last(session)
    if step is None:
        return Notice("no step is measured", "`memory 1` measures the next")
    if not step.course:
        return Notice("the step has too many operations for a timeline")
    return timeline(step)


def _devices(session: Session, words: list[str]) -> View:
    _refuse(words)
    found = devices()
    lines = device_lines(found)
    if len(found) == 1:
        lines.append(("", Text("no accelerator is here")))
    return summary(lines, "devices")


def _snapshots(session: Session) -> dict[str, MemoryShown]:
    kept: dict[str, MemoryShown] = session.memory.setdefault(MEMORY, {})
    return kept


def _take(session: Session) -> MemoryShown:
    with observing():
        return MemoryShown(look(session), tuple(devices()))


def _snapshot(session: Session, words: list[str]) -> View:
    if len(words) != 1:
        raise BadArguments("a snapshot needs one name", "memory snapshot loaded")
    _snapshots(session)[words[0]] = _take(session)
    return Notice(f"snapshot {words[0]} is kept", f"`memory diff {words[0]}` compares it with now")


def _diff(session: Session, words: list[str]) -> View:
    if len(words) not in (1, 2):
        raise BadArguments("what is to be compared?", "memory diff loaded trained")
    kept = _snapshots(session)
    for name in words:
        if name not in kept:
            raise UserError(
                f"there is no snapshot {name!r}",
                f"`memory snapshot {name}` takes one" if not kept else f"there are: {', '.join(kept)}",
            )
    other = kept[words[1]] if len(words) == 2 else _take(session)
    names = (words[0], words[1] if len(words) == 2 else "now")
    return difference(names, kept[words[0]], other, most=_rows(session))


def _refuse(words: list[str]) -> None:
    if words:
        raise BadArguments(f"{words[0]!r} is too much", "memory on, memory off, memory 3, memory timeline")


_ACTS: dict[str, Callable[[Session, list[str]], View]] = {
    "on": _on,
    "off": _off,
    "timeline": _timeline,
    "devices": _devices,
    "snapshot": _snapshot,
    "diff": _diff,
}
