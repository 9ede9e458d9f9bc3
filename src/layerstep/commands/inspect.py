from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from layerstep._torch import below_everything, is_lazy_clone
from layerstep._torch.tensors import is_tensor, version_of
from layerstep.arguments import Expr, Given
from layerstep.engine.session import Session
from layerstep.engine.values import as_it_was, value_of
from layerstep.registry import command
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import human_bytes, number
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.present import module_line, present, tensor_view
from layerstep.tensors.spread import spread
from layerstep.views import Fields, Group, Span, Text, View

BINS = 32


@command(
    "inspect",
    "i",
    group="look",
    args=Expr("X", optional=True),
    examples=("inspect out", "inspect blocks.0.attn", "inspect head.weight", "inspect out[0, :4]"),
)
def inspect(session: Session, given: Given) -> View:
    """Show everything that is known about a value.

    X is any expression or path. For a tensor: its statistics, strides, storage and the tensors that share it,
    version, autograd, hooks, a small histogram and a corner of its values. For a module: its parameters and
    buffers. For a container: a line for each tensor in it.
    """
    rest: str = given.x
    value = value_of(session.prompt, rest)
    session.run.results.keep(value)
    if is_tensor(value):
        title = (Span(rest or "out", "code"),)
        line = tensor_view(value, limit=session.run.config.sample_above)
        before, note = as_it_was(session.run, rest, value)
        lines: list[tuple[str, View]] = [("", line)]
        if before is not value:
            line = tensor_view(before, limit=session.run.config.sample_above)
            lines = [("was", line), ("now", lines[0][1])]
        lines += [("in place", Text(note))] if note else []
        return Fields(title, (*lines, *_facts(session, value)))
    if isinstance(value, nn.Module):
        return _module(value)
    return present(value)


def _facts(session: Session, tensor: torch.Tensor) -> list[tuple[str, View]]:
    facts: list[tuple[str, View]] = []

    def fact(label: str, read: Callable[[], str]) -> None:
        try:
            text = read()
        except Exception:  # sparse, nested and meta tensors lack some of these
            return
        if text:
            facts.append((label, Text(text)))

    fact("type", lambda: type(tensor).__name__ if type(tensor) is not torch.Tensor else "")
    fact("strides", lambda: f"{list(tensor.stride())}{'' if tensor.is_contiguous() else ', not contiguous'}")
    fact("storage", lambda: _storage(tensor))
    fact("shared", lambda: _sharing(session, tensor))
    fact("autograd", lambda: _autograd(tensor))
    fact("hooks", lambda: _hooks(tensor))
    fact(
        "version",
        lambda: f"{version}, the number of in-place writes" if (version := version_of(tensor)) > 0 else "",
    )
    fact("spread", lambda: _histogram(tensor))
    fact("values", lambda: _corner(tensor))
    return facts


def _storage(tensor: torch.Tensor) -> str:
    size, used = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    text = f"{size:,} bytes at offset {tensor.storage_offset()}"
    return text if size <= used else f"{text}; a view of {human_bytes(used)} keeps all of it alive"


def _sharing(session: Session, tensor: torch.Tensor) -> str:
    """The parameters and buffers that live in the same storage."""
    storage = tensor.untyped_storage()
    if not storage.nbytes() or is_lazy_clone(tensor):  # asking for its address would copy it in the run
        return ""
    where, names = storage.data_ptr(), list[str]()
    for root in (root for model in session.run.models if (root := model.root) is not None):
        for name, other in (
            *root.named_parameters(remove_duplicate=False),
            *root.named_buffers(remove_duplicate=False),
        ):
            is_plain = not is_lazy(other) and other.layout is torch.strided and other.device == tensor.device
            if is_plain and other is not tensor and other.untyped_storage().data_ptr() == where:
                names.append(name)
    return f"storage of {', '.join(names[:6])}{', …' if len(names) > 6 else ''}" if names else ""


def _autograd(tensor: torch.Tensor) -> str:
    if tensor.is_inference():
        return "an inference tensor: never part of a graph"
    if tensor.grad_fn is not None:
        kept = ", keeps its gradient" if tensor.retains_grad else ""
        return f"made by {type(tensor.grad_fn).__name__}{kept}"
    if tensor.requires_grad:
        return "a leaf that takes a gradient" + ("" if tensor.grad is None else ", has one")
    return "no gradient"


def _hooks(tensor: torch.Tensor) -> str:
    kinds = (("_backward_hooks", "on its gradient"), ("_post_accumulate_grad_hooks", "after it"))
    counts = [(len(getattr(tensor, name, None) or ()), word) for name, word in kinds]
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _histogram(tensor: torch.Tensor) -> str:
    found = spread(tensor, bins=BINS)
    if found is None or len(found.counts) < 2:
        return ""
    note = f"  sample of {found.sampled:,}" if found.sampled is not None else ""
    low, high = number(found.edges[0]), number(found.edges[-1])
    return f"{low} {sparkline(found.counts)} {high}  median {number(found.median)}{note}"


def _corner(tensor: torch.Tensor) -> str:
    """The first values: of the last two dimensions, no more than 3 by 6."""
    with below_everything():
        corner = dense_values(tensor)
        if corner is None:
            return ""
        while corner.dim() > 2:
            corner = corner[0]
        corner = corner[:3, :6] if corner.dim() == 2 else corner[:6] if corner.dim() == 1 else corner
        rows = corner.cpu().tolist()
    if corner.dim() < 2:
        return _numbers(rows if isinstance(rows, list) else [rows])
    return "\n".join(_numbers(row) for row in rows)


def _numbers(values: list[Any]) -> str:
    return "  ".join(f"{value:>9.4g}" if isinstance(value, float) else f"{value!s:>6}" for value in values)


def _module(module: nn.Module) -> View:
    own = [*module._parameters.items(), *module._buffers.items()]
    rows = tuple((name, tensor_view(tensor)) for name, tensor in own if tensor is not None)
    sizes = [0 if is_lazy(parameter) else parameter.numel() for parameter in module.parameters()]
    total = Text(f"{sum(sizes):,} parameters in all, {'training' if module.training else 'eval'} mode")
    title = (Span(module_line(module), "type"),)
    return Group((Fields(title, rows), total))
