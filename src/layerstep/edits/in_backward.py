"""`set grad_out` and `set grad_in`: the gradient that the backward pass goes on with from a stop in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Event, Phase
from layerstep.calls.set_gradients import is_leaf
from layerstep.calls.stack import Frame
from layerstep.edits.target import Target
from layerstep.errors import UserError
from layerstep.expressions.scope import Scope, run_python

__all__ = ["gradient_set", "show_gradients"]


def gradient_set(target: Target, text: str, *, event: Event, frame: Frame, names: Scope) -> Event:
    """The event of a stop in the backward pass, with another gradient in it."""
    name = "grad_in" if event.phase is Phase.BACKWARD else "grad_out"
    if target.base not in ("grad", name):
        raise UserError(*_why_not(target.base, frame.path))
    known = tuple(event.output)
    if all(each is None for each in known):
        raise UserError(f"no gradient goes on from {frame.path} here")
    names["grad"] = whole = known[0] if len(known) == 1 else known
    value, _ = run_python(text, names)
    as_output = Event(Phase.EXIT, event.module, (), {}, whole)
    new = Target(target.text, "out", target.steps).replaced(as_output, value, names).output
    gradients = (new,) if len(known) == 1 else tuple(new)
    _check(known, gradients, frame, name)
    return event._replace(output=gradients)


def _why_not(base: str, path: str) -> tuple[str, str]:
    if base == "grad_in":
        return f"grad_in of {path} is not complete yet", "`finish` runs until it is"
    return f"grad_out of {path} was used already", f"`edit {path}.grad EXPR` changes it in the next pass"


def _check(known: Sequence[Tensor | None], new: Sequence[Any], frame: Frame, name: str) -> None:
    """Autograd raises in the middle of the pass if a gradient has another shape, so it is refused here."""
    for at, (old, value) in enumerate(zip(known, new, strict=True)):
        if value is old:
            continue
        if old is None or not is_tensor(value) or value.shape != old.shape:
            shapes = f"{list(old.shape)}" if old is not None else "none"
            given = f"{list(value.shape)}" if is_tensor(value) else type(value).__name__
            raise UserError(f"{name} has the shape {shapes}, and the value {given}")
        if name == "grad_in" and frame.call is not None and is_leaf(frame.call.inputs[at]):
            raise UserError(
                f"the input of {frame.path} is a leaf and has its gradient already",
                "write its .grad after the backward pass",
            )


def show_gradients(frame: Frame, event: Event) -> None:
    """Let the stop show the gradients that the pass goes on with."""
    if frame.call is not None:
        held = frame.call.grad_in if event.phase is Phase.BACKWARD else frame.call.grad_out
        held[:] = event.output
