"""A stop after an operation: its arguments by name, its result, and the line of the user's code."""

from __future__ import annotations

from typing import Any

from layerstep.calls.operations import Op, is_whole, writes
from layerstep.calls.stack import Frame
from layerstep.engine.causes import MOST_SHOWN, rows_of
from layerstep.engine.stop import Shown, Stop
from layerstep.errors import UserError
from layerstep.expressions.source import source_around
from layerstep.ops.signatures import named_arguments
from layerstep.process.frames import location_of
from layerstep.tensors.present import short
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Fields, Group, Source, Span, Text, View

__all__ = ["AfterOp", "operands_of"]

CONTEXT = 2
"""Lines of source before and after that of the op: stops come one after the other."""
_UNTOLD = ("_stacklevel",)


class AfterOp:
    """An operation has just run."""

    def view(self, stop: Stop, shown: Shown) -> View:
        frame = stop.stack[0]
        op = frame.op
        assert op is not None
        title = [Span(frame.path, "path"), Span(op.name, "code"), Span("done", "good")]
        title += [Span("aten op" if op.is_kernel else "op", "type")]
        title += [Span(words, "dim") for words in _remarks(op)]
        title.append(Span(f"forward {stop.forward}", "dim"))
        title += [Span(stop.reason, "dim")] if stop.reason else []
        rows = _arguments(op, shown.limit) + rows_of("out", op.result, shown.limit)
        source = _source(frame)
        if source is None and frame.caller is not None:
            rows.append(("at", Text(location_of(frame.caller))))
        fields = Fields(tuple(title), (*rows, *shown.watches))
        return Group((fields, source)) if source is not None else fields


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
            rows += rows_of(name, value, limit)
        elif value is not None and name not in _UNTOLD:
            others.append(f"{name}={short(value)}")
    if len(rows) > MOST_SHOWN:
        rows = [*rows[:MOST_SHOWN], ("…", Text(f"{len(rows) - MOST_SHOWN} more tensors are in `inp`"))]
    return rows + ([("with", Text(", ".join(others)))] if others else [])


def _source(frame: Frame) -> Source | None:
    try:
        return source_around(frame.caller, CONTEXT) if frame.caller is not None else None
    except UserError:
        return None


def operands_of(op: Op) -> list[tuple[str, Any]]:
    """The arguments that hold tensors, by name."""
    named = named_arguments(op.func, op.args, op.kwargs)
    return [(name, value) for name, value in named if tensors_in(value, most=1)]
