"""The value of an expression, as the commands that look at values take it."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from layerstep.calls.overwritten_inputs import before_call
from layerstep.engine.prompt import Prompt
from layerstep.engine.run import Run
from layerstep.errors import UserError
from layerstep.expressions.expression import may_act
from layerstep.tensors.shapes import tensors_in

__all__ = ["as_it_was", "one_tensor", "value_of"]


def value_of(prompt: Prompt, text: str) -> Any:
    """Evaluate the argument of a look command; what it names at this stop if it is left out."""
    if not text:
        frame = prompt.run.pause.frame if prompt.run.pause is not None else None
        if frame is None or frame.module is None:
            raise UserError("nothing has stopped yet", "name an expression")
        text = "out" if frame.has_output else "inp"
    value, _, _ = prompt.evaluate(text, deep=may_act(text))
    return value


def one_tensor(prompt: Prompt, text: str) -> tuple[str, torch.Tensor]:
    """The tensor that an argument names, the first one of a container; with the expression for it."""
    value = value_of(prompt, text)
    if not text:
        frame = prompt.run.pause.frame if prompt.run.pause is not None else None
        text = "out" if frame is not None and frame.has_output else "inp"
    leaves = tensors_in(value, most=1)
    if not leaves:
        hint = "name one of its tensors, as in head.weight" if isinstance(value, nn.Module) else ""
        raise UserError(f"no tensor in {text}", hint or f"it is a {type(value).__name__}")
    return text + leaves[0][0], leaves[0][1]


_INPUT = re.compile(r"\s*(?:inp|kwargs)\b|.*\.(?:input|kwargs)\b")


def as_it_was(run: Run, text: str, value: Any) -> tuple[Any, str]:
    """The value of an expression that names an input, before the call; and what is to be said about that."""
    frames = run.pause.stack if run.pause is not None else []
    known = [each for frame in frames for each in frame.overwritten]
    if not known or not _INPUT.match(text):
        return value, ""
    return before_call(tuple(known), value, limit=run.config.copy_input_bytes, name=text.strip())
