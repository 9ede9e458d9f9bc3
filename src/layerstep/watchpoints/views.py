"""A write to a watched tensor as a view: who, where, and what it did to the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerstep.engine.pause import Pause
from layerstep.tensors.format import number, place
from layerstep.tensors.present import tensor_view
from layerstep.views import Fields, Span, Text, View
from layerstep.watchpoints.write_event import UNSEEN, Write

__all__ = ["fields_of"]


def fields_of(write: Write, pause: Pause, *, limit: int, more: Sequence[tuple[str, View]] = ()) -> Fields:
    """The stop at a write, and what else is shown there."""
    unseen = write.kind == "unseen"
    title = [
        Span(write.point.label, "path"),
        Span("changed unseen" if unseen else write.kind, "warn" if unseen else "good"),
    ]
    if write.op or write.node:
        title.append(Span(write.op or write.node, "type"))
    title.append(Span(pause.reason, "dim"))
    items: list[tuple[str, View]] = []
    for name, tensor in (("before", write.before), ("after", write.after)):
        items.append((name, tensor_view(tensor, limit=limit) if tensor is not None else Text("None")))
    items += [("changed", Text(text)) for text in _changes(write)]
    items += [(name, Text(text)) for name, text in _doers(write, pause)]
    if write.place.file:
        items.append(("at", Text(str(write.place))))
    return Fields(tuple(title), (*items, *more))


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


def _doers(write: Write, pause: Pause) -> list[tuple[str, str]]:
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
    inner = pause.stack[0] if pause.stack else None
    if inner is not None and inner.module is not None:
        found.append(("in", f"{inner.path} ({type(inner.module).__name__})"))
    return found


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
