from __future__ import annotations

import inspect

import torch

from layerstep.arguments import Expr, Given
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.registry import command
from layerstep.tensors.shapes import shape_line
from layerstep.views import Text


@command("whatis", group="look", args=Expr("EXPR"), examples=("whatis out", "whatis mod"))
def whatis(session: Session, given: Given) -> Text:
    """Show the type of a value.

    A tensor with its shape, a function with its signature. `inspect` says more.
    """
    value = value_of(session.prompt, given.expr)
    if issubclass(type(value), torch.Tensor):
        return Text(f"{type(value).__name__} {shape_line(value)}")
    if inspect.isroutine(value):
        try:
            signature = str(inspect.signature(value))
        except (TypeError, ValueError):
            signature = "(…)"
        return Text(f"function {getattr(value, '__qualname__', '')}{signature}")
    kind = value if isinstance(value, type) else type(value)
    return Text(f"{'class' if isinstance(value, type) else ''} {kind.__module__}.{kind.__qualname__}".strip())
