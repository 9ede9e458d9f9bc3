"""The value of an expression, as the commands that look at values take it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from layerstep.engine.expression import may_act
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.tensors.shapes import tensors_in

__all__ = ["one_tensor", "value_of"]


def value_of(session: Session, text: str) -> Any:
    """Evaluate the argument of a look command; what it names at this stop if it is left out."""
    if not text:
        frame = session.run.pause.frame if session.run.pause is not None else None
        if frame is None or frame.module is None:
            raise UserError("nothing has stopped yet", "name an expression")
        text = "out" if frame.has_output else "inp"
    value, _, _ = session.evaluate(text, deep=may_act(text))
    return value


def one_tensor(session: Session, text: str) -> tuple[str, torch.Tensor]:
    """The tensor that an argument names, the first one of a container; with the expression for it."""
    value = value_of(session, text)
    if not text:
        frame = session.run.pause.frame if session.run.pause is not None else None
        text = "out" if frame is not None and frame.has_output else "inp"
    leaves = tensors_in(value, most=1)
    if not leaves:
        hint = "name one of its tensors, as in head.weight" if isinstance(value, nn.Module) else ""
        raise UserError(f"no tensor in {text}", hint or f"it is a {type(value).__name__}")
    return text + leaves[0][0], leaves[0][1]
