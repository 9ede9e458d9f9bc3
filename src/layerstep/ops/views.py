"""A stop after an operation: its arguments by name, its result, and the line of the user's code."""

from __future__ import annotations

from typing import Any

from layerstep.engine.operations import Op, is_whole, writes
from layerstep.engine.pause import Pause
from layerstep.engine.source import source_around
from layerstep.engine.stack import Frame, location_of
from layerstep.errors import UserError
from layerstep.ops.signatures import named_arguments
from layerstep.tensors.present import short, tensor_view
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Fields, Group, Notice, Source, Span, Text, View

__all__ = ["op_view", "operands_of"]

MOST_TENSORS = 6
CONTEXT = 2
"""Lines of source before and after that of the op: stops come one after the other."""
_UNTOLD = ("_stacklevel",)


def op_view(pause: Pause, frame: Frame, *, limit: int, more: list[tuple[str, View]]) -> View:
    """What is shown at the stop; `more` are lines to be added, of watches say."""
    op = frame.op
    assert op is not None
    title = [Span(frame.path, "path"), Span(op.name, "code"), Span("done", "good")]
    title += [Span("aten op" if op.is_kernel else "op", "type")]
    title += [Span(words, "dim") for words in _remarks(op)]
    title.append(Span(f"forward {pause.forward}", "dim"))
    if pause.reason:
        title.append(Span(pause.reason, "dim"))
    items = _arguments(op, limit) + _tensors("out", op.result, limit)
    source = _source(frame)
    if source is None and frame.caller is not None:
        items.append(("at", Text(location_of(frame.caller))))
    stop: list[View] = [Fields(tuple(title), tuple(items + more))]
    if pause.trouble:
        stop.insert(0, Notice(pause.trouble, level="error"))
    return Group((*stop, source)) if source is not None else Group(tuple(stop))


def _remarks(op: Op) -> list[str]:
    remarks = []
    if op.node:
        remarks.append(f"in {op.node}")
    if writes(op.func):
        remarks.append("in place: its operand is as it is now")
    if is_whole(op.name):
        remarks.append("fused: nothing inside to step" if op.is_kernel else "one op; `stepi` sees below it")
    return remarks


def _arguments(op: Op, limit: int) -> list[tuple[str, View]]:
    """The operands, a line a tensor; the other arguments on one line."""
    rows: list[tuple[str, View]] = []
    others = []
    for name, value in named_arguments(op.func, op.args, op.kwargs):
        if tensors_in(value, most=1):
            rows += _tensors(name, value, limit)
        elif value is not None and name not in _UNTOLD:
            others.append(f"{name}={short(value)}")
    if len(rows) > MOST_TENSORS:
        rows = [*rows[:MOST_TENSORS], ("…", Text(f"{len(rows) - MOST_TENSORS} more tensors are in `inp`"))]
    return rows + ([("with", Text(", ".join(others)))] if others else [])


def _tensors(label: str, value: Any, limit: int) -> list[tuple[str, View]]:
    leaves = tensors_in(value, most=MOST_TENSORS + 1)
    if not leaves:
        return [(label, Text(short(value)))]
    rows: list[tuple[str, View]] = [
        (label + place, tensor_view(tensor, limit=limit)) for place, tensor in leaves[:MOST_TENSORS]
    ]
    if len(leaves) > MOST_TENSORS:
        rows.append((label, Text(f"… more tensors: `inspect {label}`")))
    return rows


def _source(frame: Frame) -> Source | None:
    try:
        return source_around(frame.caller, CONTEXT) if frame.caller is not None else None
    except UserError:
        return None


def operands_of(op: Op) -> list[tuple[str, Any]]:
    """The arguments that hold tensors, by name."""
    named = named_arguments(op.func, op.args, op.kwargs)
    return [(name, value) for name, value in named if tensors_in(value, most=1)]
