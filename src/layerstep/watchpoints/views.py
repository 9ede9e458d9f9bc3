"""A write to a watched tensor as a view: who, where, and what it did to the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerstep.engine.stop import Shown, Stop
from layerstep.tensors.format import number, place
from layerstep.tensors.present import tensor_view
from layerstep.views import Fields, Span, Text, View
from layerstep.watchpoints.write_event import UNSEEN, Write

__all__ = ["Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """A watched tensor was written."""

    write: Write

    def view(self, stop: Stop, shown: Shown) -> View:
        write = self.write
        unseen = write.kind == "unseen"
        title = [
            Span(write.point.name, "path"),
            Span("changed unseen" if unseen else write.kind, "warn" if unseen else "good"),
        ]
        if write.op or write.node:
            title.append(Span(write.op or write.node, "type"))
        title.append(Span(stop.reason, "dim"))
        rows: list[tuple[str, View]] = []
        for name, tensor in (("before", write.before), ("after", write.after)):
            rows.append(
                (name, tensor_view(tensor, limit=shown.limit) if tensor is not None else Text("None"))
            )
        rows += [("changed", Text(text)) for text in _changes(write)]
        rows += [(name, Text(text)) for name, text in _doers(write, stop)]
        if write.place.file:
            rows.append(("at", Text(str(write.place))))
        return Fields(tuple(title), (*rows, *shown.watches))


def _changes(write: Write) -> list[str]:
    change, steps = write.change, write.point.steps
    if change is None:
        return []
    what = "sampled elements" if steps else "elements" if change.total != 1 else "element"
    text = f"{change.count:,} of {change.total:,} {what}"
    if change.count:
        size = f"max |Δ| {number(change.largest)} at " if change.largest is not None else ""
        before, after = (_figure(value) for value in change.values)
        text += f", {size}{place(change.index)}: {before} → {after}"
    if not steps:
        return [text]
    every = " × ".join(str(step) for step in steps)
    return [text, f"compared is every {every}th element: a copy of all is more than keep_bytes"]


def _doers(write: Write, stop: Stop) -> list[tuple[str, str]]:
    """Who did it, as far as it is known."""
    found = []
    if write.kind == "unseen":
        found.append(("between", f"{write.since} and here, {UNSEEN}"))
    elif write.since:
        found.append(("between", f"{write.since} and here, by no op: `.data =`, `.grad =`, another tensor"))
    if write.optimizer:
        called = f", called at {write.called_at}" if write.called_at != write.place else ""
        found.append(("by", f"{write.optimizer}.step(){called}"))
    if write.node and write.op:
        found.append(("in", f"{write.node}, in the backward pass"))
    inner = stop.stack[0] if stop.stack else None
    if inner is not None and inner.module is not None:
        found.append(("in", f"{inner.path} ({type(inner.module).__name__})"))
    return found


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
