"""The causes of stops at modules, in the backward pass and at lines, and what is shown there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layerstep.calls.backward import Call
from layerstep.calls.events import Phase
from layerstep.calls.overwritten_inputs import before_call
from layerstep.calls.stack import Frame
from layerstep.engine.stop import Shown, Stop
from layerstep.process.frames import function_label, location_at, location_of
from layerstep.tensors.present import short, tensor_view
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Fields, Span, Text, View

__all__ = ["AtLine", "AtModule", "InBackward", "rows_of"]

MOST_SHOWN = 6
"""Tensors of one input or output; `inspect` shows the others."""

Row = tuple[str, View]


def rows_of(label: str, value: Any, limit: int) -> list[Row]:
    """One input or output: a row for each tensor, a word for anything else."""
    if isinstance(value, (tuple, dict)) and not value:
        return []
    leaves = tensors_in(value, most=MOST_SHOWN + 1)
    if not leaves:
        return [(label, Text(short(value)))]
    rows: list[Row] = [
        (label + place, tensor_view(tensor, limit=limit)) for place, tensor in leaves[:MOST_SHOWN]
    ]
    if len(leaves) > MOST_SHOWN:
        rows.append((label, Text(f"… more tensors: `inspect {label}`")))
    return rows


def _fields(title: Iterable[Span], rows: Iterable[Row], shown: Shown) -> Fields:
    return Fields(tuple(span for span in title if span.text), (*rows, *shown.watches))


class AtModule:
    """A module is about to run, or has just finished."""

    def view(self, stop: Stop, shown: Shown) -> View:
        frame = stop.stack[0]
        is_entry = stop.event is not None and stop.event.phase is Phase.ENTER
        title = (
            Span(frame.path, "path"),
            Span("entered" if is_entry else "done", "good"),
            Span(type(frame.module).__name__, "type"),
            Span(f"forward {stop.forward}", "dim"),
            Span(stop.reason, "dim"),
        )
        inp, note = before_call(frame.overwritten, frame.inp, limit=shown.copy_limit, name="inp")
        rows = rows_of("inp", inp, shown.limit) + ([("", Text(note))] if note else [])
        for name, value in list(frame.kwargs.items())[:MOST_SHOWN]:
            if tensors_in(value, most=1):
                rows += rows_of(f"{name}=", value, shown.limit)
        if frame.has_output:
            rows += rows_of("out", frame.output, shown.limit)
        if stop.python is not None:
            rows.append(("at", Text(location_of(stop.python))))
        return _fields(title, rows, shown)


@dataclass(frozen=True, slots=True)
class InBackward:
    """The backward pass is at a call of the forward."""

    call: Call
    is_ready: Callable[[nn.Parameter], bool]
    """Has the running pass added to the gradient of a parameter?"""

    def view(self, stop: Stop, shown: Shown) -> View:
        frame = stop.stack[0]
        title = (
            Span(frame.path, "path"),
            Span(frame.state, "good"),
            Span(type(frame.module).__name__, "type"),
            Span(f"forward {self.call.forward}", "dim"),
            Span(stop.reason, "dim"),
        )
        rows: list[Row] = []
        for name, gradients in (("grad_out", self.call.grad_out), ("grad_in", self.call.grad_in)):
            known = [gradient for gradient in gradients if gradient is not None]
            rows += rows_of(name, known[0] if len(known) == 1 else tuple(known), shown.limit)
        rows += self._parameters()
        rows += [("made at", Text(location_at(*self.call.made_at)))] if self.call.made_at[0] else []
        return _fields(title, rows, shown)

    def _parameters(self) -> list[Row]:
        """Which parameters of the module have their gradient of this pass already."""
        own = self.call.module.named_parameters()
        ready = {name: self.is_ready(parameter) for name, parameter in own if parameter.requires_grad}
        if not ready:
            return []
        if len(ready) > 4:
            return [("params", Text(f"gradients of {sum(ready.values())} of {len(ready)} are there"))]
        words = (f"{name} {'has its gradient' if there else 'not yet'}" for name, there in ready.items())
        return [("params", Text(", ".join(words)))]


class AtLine:
    """A line of the program: at a point or a step there, in `set_trace()`, or after the end."""

    def view(self, stop: Stop, shown: Shown) -> View:
        inner = stop.stack[0] if stop.stack else None
        title: list[Span] = []
        is_line = inner is not None and inner.at_line
        if not is_line:
            title.append(Span(stop.reason or "paused", "good"))
        elif inner is not None and inner.within is not None:
            title.append(Span(function_label(inner.within), "key"))
            title.append(Span("returns" if inner.has_output else "", "good"))
        if inner is not None and inner.module is not None:
            title += [Span(inner.path, "path"), Span(type(inner.module).__name__, "type")]
        if is_line:
            title.append(Span(stop.reason, "dim"))
        rows: list[Row] = [("at", Text(location_of(stop.python)))] if stop.python is not None else []
        if inner is not None and inner.at_line:
            limit = shown.limit
            rows += rows_of("returns", inner.output, limit) if inner.has_output else _locals(inner, limit)
        return _fields(title, rows, shown)


def _locals(frame: Frame, limit: int) -> list[Row]:
    """The tensors of the function that runs: first those that the line names."""
    assert frame.within is not None
    named = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", location_of(frame.within).partition("  ")[2]))
    known = frame.within.f_locals
    tensors = {
        name: known[name] for name in (*named, *known) if issubclass(type(known.get(name)), torch.Tensor)
    }
    rows: list[Row] = [
        (name, tensor_view(value, limit=limit)) for name, value in list(tensors.items())[:MOST_SHOWN]
    ]
    if len(tensors) > MOST_SHOWN:
        rows.append(("more", Text(f"{len(tensors) - MOST_SHOWN} more tensors: `info locals`")))
    return rows
