"""`set` on a parameter, a buffer or a gradient: it is written, and a copy is kept for `undo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerstep._torch import set_version
from layerstep._torch.tensors import version_of
from layerstep.edits.made import Made
from layerstep.edits.target import Target
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.scope import EvaluationFailed, run_python
from layerstep.side_effects.guard import state_of
from layerstep.tensors.observing import observing
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["write_weight"]


def write_weight(session: Session, target: Target, text: str, *, line: str) -> tuple[Made, Notice]:
    """Write into a tensor of a model; the edit, and what to say of it."""
    name, tensor = _tensor_of(session, target)
    value, _ = run_python(text, session.run.scope)
    index = target.index(session.run.scope)
    with observing():
        before, version = tensor.detach().clone(), version_of(tensor)
    try:
        with torch.no_grad():
            tensor[index] = value.to(tensor) if isinstance(value, Tensor) else value
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise EvaluationFailed(error) from None
    with observing():
        after, written = tensor.detach().clone(), version_of(tensor)
    number = session.points.next_number()
    session.run.weight_edits += 1

    def put(values: Tensor, version: int) -> None:
        session.run.weight_edits += 1
        with torch.no_grad():
            tensor.data.copy_(values)
        if version >= 0:
            set_version(tensor, version)

    def undo() -> str:
        if version_of(tensor) != written:
            raise UserError(
                f"{name} was written {version_of(tensor) - written} times since edit {number}",
                "to take the edit back would take those back, too",
            )
        put(before, version)
        return ""

    made = Made(number, line, name, lambda: "written", undo, lambda: put(after, written), is_weight=True)
    hint = ""
    if torch.is_grad_enabled() and session.run.pause is not None and session.run.pause.stack:
        hint = "if this forward has used it, torch refuses its backward pass; `undo` before it"
    return made, Notice(f"edit {number}: {name} is written", hint, level="good")


def _tensor_of(session: Session, target: Target) -> tuple[str, Tensor]:
    tensor, _ = run_python(target.name, session.run.scope)
    known = next((path for path, each in state_of(session.run.models) if each is tensor), "")
    if not known:
        raise BadArguments(
            f"{target.name} is not a parameter, a buffer or a gradient of a model",
            "out, inp and kwargs are values of a call",
        )
    return known, tensor
