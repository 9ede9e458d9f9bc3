from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from layerstep.analysis.present import module_line, present, tensor_view
from layerstep.engine.expression import may_act
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.views import Fields, Group, Span, Text, View

__all__ = ["value_of"]


def value_of(session: Session, text: str) -> Any:
    """Evaluate the argument of a look command; what it names at this stop if it is left out."""
    if not text:
        frame = session.pause.frame if session.pause is not None else None
        if frame is None or frame.module is None:
            raise UserError("nothing has stopped yet", "name an expression")
        text = "out" if frame.has_output else "inp"
    value, _, _ = session.evaluate(text, deep=may_act(text))
    return value


@command(
    "inspect",
    "i",
    group="look",
    usage="[X]",
    examples=("inspect out", "inspect blocks.0.attn", "inspect head.weight", "inspect out[0, :4]"),
    complete="expression",
)
def inspect(session: Session, rest: str) -> View:
    """Show everything that is known about a value.

    A tensor: its line, then strides, storage, version, autograd and a corner of its values. A module: its
    parameters and buffers. A container: the line of each tensor in it. X is any expression or path.
    """
    value = value_of(session, rest)
    session.results.keep(value)
    if isinstance(value, torch.Tensor):
        return Fields((Span(rest or "out", "code"),), (("", tensor_view(value)), *_facts(value)))
    if isinstance(value, nn.Module):
        return _module(value)
    return present(value)


def _facts(tensor: torch.Tensor) -> list[tuple[str, View]]:
    facts: list[tuple[str, View]] = []

    def fact(label: str, read: Any) -> None:
        try:
            text = read()
        except Exception:  # sparse, nested and meta tensors lack some of these
            return
        if text:
            facts.append((label, Text(str(text))))

    fact("type", lambda: type(tensor).__name__ if type(tensor) is not torch.Tensor else "")
    fact("strides", lambda: f"{list(tensor.stride())}{'' if tensor.is_contiguous() else ', not contiguous'}")
    fact(
        "storage", lambda: f"{tensor.untyped_storage().nbytes():,} bytes at offset {tensor.storage_offset()}"
    )
    fact("autograd", lambda: _autograd(tensor))
    fact("version", lambda: f"{tensor._version}, the number of in-place writes" if tensor._version else "")
    fact("values", lambda: _corner(tensor))
    return facts


def _autograd(tensor: torch.Tensor) -> str:
    if tensor.grad_fn is not None:
        return f"made by {type(tensor.grad_fn).__name__}"
    if tensor.requires_grad:
        return "a leaf that takes a gradient" + ("" if tensor.grad is None else ", has one")
    return "no gradient"


def _corner(tensor: torch.Tensor) -> str:
    """The first values: of the last two dimensions, no more than 3 by 6."""
    from layerstep.engine.guard import observing

    with observing():
        corner = tensor.detach()
        while corner.dim() > 2:
            corner = corner[0]
        corner = corner[:3, :6] if corner.dim() == 2 else corner[:6] if corner.dim() == 1 else corner
        values = corner.cpu().tolist()
    if corner.dim() < 2:
        return _numbers(values if isinstance(values, list) else [values])
    return "\n".join(_numbers(row) for row in values)


def _numbers(values: list[Any]) -> str:
    return "  ".join(f"{value:>9.4g}" if isinstance(value, float) else f"{value!s:>6}" for value in values)


def _module(module: nn.Module) -> View:
    own = [*module._parameters.items(), *module._buffers.items()]
    rows = tuple((name, tensor_view(tensor)) for name, tensor in own if tensor is not None)
    sizes = [0 if is_lazy(parameter) else parameter.numel() for parameter in module.parameters()]
    total = Text(f"{sum(sizes):,} parameters in all, {'training' if module.training else 'eval'} mode")
    title = (Span(module_line(module), "type"),)
    return Group((Fields(title, rows), total))
