"""Memory as views: by module, over a step, between two moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.memory.devices import Device
from layerstep.memory.forecast import Forecast
from layerstep.memory.now import KEPT, Now
from layerstep.memory.step import KINDS, MeasuredStep, Peak, Savings
from layerstep.tensors.format import human_bytes, share
from layerstep.views import Column, Fields, Figure, Plot, Span, Table, Text, View

__all__ = [
    "OUTSIDE",
    "MemoryShown",
    "device_lines",
    "difference",
    "modules",
    "step_lines",
    "summary",
    "timeline",
]

OUTSIDE = "(outside)"
_SHORT = {"optimizer state": "optimizer", "temporary": "temporary"}


@dataclass(frozen=True, slots=True)
class MemoryShown:
    """The memory at one time, kept under a name."""

    now: Now
    devices: tuple[Device, ...]


class Snapshots(Instrument):
    """The moments that a session keeps by name."""

    def __init__(self, session: Session) -> None:
        self.by_name: dict[str, MemoryShown] = {}


def modules(now: Now, step: MeasuredStep | None, *, inside: Callable[[str], bool], most: int) -> Table:
    """What each module keeps, and what autograd kept for it in a measured step; the largest first."""
    kept = step.kept if step is not None else now.kinds
    columns = {kind: kept.get(kind, {}) for kind in KEPT}
    if step is not None:
        columns["saved"] = step.saved.by_path
        columns["temporary"] = step.highest.temporary
    columns = {kind: {p: b for p, b in by_path.items() if inside(p)} for kind, by_path in columns.items()}
    columns = {kind: by_path for kind, by_path in columns.items() if any(by_path.values())}
    sums: dict[str, int] = {}
    for by_path in columns.values():
        for path, size in by_path.items():
            sums[path] = sums.get(path, 0) + size
    paths = sorted((path for path in sums if sums[path]), key=lambda path: -sums[path])
    rows = [
        (path or OUTSIDE, *(_cell(by_path.get(path, 0)) for by_path in columns.values()))
        for path in paths[:most]
    ]
    if len(paths) > most:
        rest = [sum(by_path.get(path, 0) for path in paths[most:]) for by_path in columns.values()]
        rows.append((f"… {len(paths) - most:,} more", *map(_cell, rest)))
    rows.append(("all", *(_cell(sum(by_path.values())) for by_path in columns.values())))
    heads = (Column(_SHORT.get(kind, kind), right=True) for kind in columns)
    moments = "kept as it ended, saved as its backward began, temporary at its peak"
    title = f"{step.label}: {moments}" if step is not None else ""
    return Table((Column("module", "path"), *heads), tuple(rows), title=title)


def _cell(size: int) -> str:
    return human_bytes(size) if size else "-"


def step_lines(step: MeasuredStep, expected: Forecast | None) -> list[tuple[str, View]]:
    """A measured step in a few labelled lines."""
    peak = step.highest
    lines = [
        ("measured", step.label + _calls(step)),
        ("peak", f"{human_bytes(peak.bytes)} in tensors, {_where(peak)}"),
    ]
    if peak.kinds:
        parts = [(kind, peak.kinds[kind]) for kind in KINDS if peak.kinds.get(kind)]
        words = {"other": "there before"}
        text = ", ".join(f"{words.get(kind, kind)} {human_bytes(size)}" for kind, size in parts)
        lines.append(("of it", text))
    if step.is_cut:
        lines.append(("of it", "not known: the step has too many operations to keep them all"))
    if step.is_compiled:
        lines.append(("not seen", "what compiled code takes and gives back inside: the peak may be higher"))
    savings = list(_savings(step.saved))
    lines += [("autograd held", savings[0]), *(("", text) for text in savings[1:])]
    lines.append(("at its end", human_bytes(step.after)))
    if expected is not None:
        part = share(expected.scaling, expected.scaling + expected.fixed)
        text = f"about {human_bytes(expected.bytes)}: {part} of the peak grows with the batch"
        lines += [(f"batch {expected.batch}", text), ("", expected.basis)]
    return [(label, Text(text)) for label, text in lines]


def _calls(step: MeasuredStep) -> str:
    batch = f", batch {step.batch}" if step.batch else ""
    return f"{batch}, {step.forwards} forwards" if step.forwards > 1 else batch


def _where(peak: Peak) -> str:
    place = {"backward": "in the backward of ", "forward": "in the forward of "}.get(peak.part, "")
    at = f", at {peak.line}" if peak.line else ""
    if place:
        return place + (peak.path or "what is outside modules") + at
    known = {"optimizer": "in the optimizer's step", "between": "outside modules"}
    return known.get(peak.part, "before its first operation") + at


def _savings(saved: Savings) -> Iterable[str]:
    if not saved.nodes:
        yield "nothing: no graph was made"
        return
    yield f"{human_bytes(saved.bytes)} of activations in {saved.nodes:,} nodes"
    if saved.apart:
        apart = ", ".join(f"{human_bytes(size)} of {kind}" for kind, size in saved.apart.items())
        yield f"besides {apart}, which are there anyway"
    if saved.opaque:
        names = ", ".join(f"{name} ×{count}" for name, count in saved.opaque.items())
        yield f"not counted: {names}, which do not show what they hold"
    if saved.is_cut:
        yield "the graph is too large: the rest of it is not counted"


def device_lines(devices: Iterable[Device]) -> list[tuple[str, View]]:
    """Each device in a line, and what is unknown of it in another."""
    lines: list[tuple[str, View]] = []
    for device in devices:
        on_host = device.name == "cpu"
        words = [_figure("this process has" if on_host else "tensors have", device.used)]
        words += [_figure("at most", device.peak), _figure("reserved", device.reserved)]
        if device.fragmentation is not None:
            words.append(f"{device.fragmentation:.0%} of the reserved was unused at the peak")
        if device.total:
            words.append(f"{human_bytes(device.free or 0)} of {human_bytes(device.total)} free")
        if device.utilisation is not None:
            words.append(f"{device.utilisation:.0%} busy")
        words += [
            f"{human_bytes(count)} {word.removeprefix('bytes ')}" if "bytes" in word else f"{count:,} {word}"
            for word, count in device.allocator.items()
            if count
        ]
        lines.append((device.name, Text(", ".join(word for word in words if word))))
        lines += [("", Text(f"unknown: {'; '.join(device.unknown)}"))] if device.unknown else []
    return lines


def _figure(word: str, size: int | None) -> str:
    return f"{word} {human_bytes(size)}" if size is not None else ""


def timeline(step: MeasuredStep) -> Plot:
    """The bytes that were alive over a step."""
    size, unit = 1.0, "B"
    for bigger, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if step.highest.bytes >= bigger:
            size, unit = bigger, name
            break
    count = max(1, len(step.course) - 1)
    values = tuple(value / size for value in step.course)
    parts = ", ".join(f"{part} from {at:.0%}" for at, part in _long_parts(step))
    return Plot(
        "line",
        (values,),
        title=f"memory in tensors, {step.label}",
        x=tuple(100 * at / count for at in range(len(values))),
        x_label="% of its allocations",
        y_label=unit,
        note=f"peak {human_bytes(step.highest.bytes)}, {_where(step.highest)}"
        + (f"; {parts}" if parts else ""),
    )


def _long_parts(step: MeasuredStep) -> list[tuple[float, str]]:
    """Where each part begins first; forward and backward may take turns."""
    first: dict[str, float] = {}
    for at, part in step.parts:
        first.setdefault(part, at)
    return [(at, part) for part, at in first.items() if part in ("forward", "backward", "optimizer")]


def difference(names: tuple[str, str], one: MemoryShown, other: MemoryShown, *, most: int) -> View:
    """What has changed from one moment to another, by kind and module."""
    rows = []
    for kind in KEPT:
        before, after = one.now.kinds.get(kind, {}), other.now.kinds.get(kind, {})
        for path in dict.fromkeys((*before, *after)):
            change = after.get(path, 0) - before.get(path, 0)
            if change:
                rows.append((abs(change), (path, kind, *_change(before.get(path, 0), after.get(path, 0)))))
    rows.sort(key=lambda row: -row[0])
    shown = [row for _, row in rows[:most]]
    hidden = len(rows) - len(shown)
    kept = [sum(map(each.now.total, KEPT)) for each in (one, other)]
    shown.append(("all", "", *_change(*kept)))
    shown.append(("other tensors", "", *_change(one.now.others, other.now.others)))
    for before_device, after_device in zip(one.devices, other.devices, strict=False):
        if before_device.used is not None and after_device.used is not None:
            shown.append(
                (
                    after_device.name,
                    "process" if after_device.name == "cpu" else "allocated",
                    *_change(before_device.used, after_device.used),
                )
            )
    columns = (
        Column("module", "path"),
        Column("what"),
        *(Column(name, right=True) for name in (*names, "change")),
    )
    return Table(columns, tuple(shown), note=f"{hidden:,} more rows" if hidden > 0 else "")


def _change(before: int, after: int) -> tuple[str, str, str]:
    sign = "+" if after > before else "-" if after < before else ""
    text = f"{sign}{human_bytes(abs(after - before))}" if sign else "="
    return _cell(before), _cell(after), Figure(text, after - before, "B")


def summary(lines: list[tuple[str, View]], title: str) -> Fields:
    """Labelled lines under a title."""
    return Fields((Span(title, "key"),), tuple(lines))
