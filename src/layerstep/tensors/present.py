"""Values as views: a line for a tensor, all items of a container, a bounded repr for anything else."""

from __future__ import annotations

import reprlib
from collections.abc import Sized
from typing import Any

import torch
from torch import nn

from layerstep._torch import below_everything
from layerstep._torch.tensors import is_tensor
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import leaves_in, shape_line, tensors_in
from layerstep.tensors.summary import Summary, summarize
from layerstep.views import Fields, Group, Span, TensorView, Text, View

__all__ = ["brief", "module_line", "present", "short", "small_values", "tensor_view", "view_of"]

MOST_LEAVES = 24
MOST_WORD = 120
MOST_CHARACTERS = 2_000
MOST_VALUES = 16


def tensor_view(tensor: torch.Tensor, *, limit: int | None = None) -> TensorView:
    """The tensor line; with a limit, from a sample of that many elements."""
    with observing():
        return view_of(summarize(tensor, limit=limit, brief=True))


def brief(value: Any, *, limit: int | None = None) -> View:
    """A value in one line: a tensor's, or a short text."""
    if issubclass(type(value), torch.Tensor):
        return tensor_view(value, limit=limit)
    return Text(module_line(value) if isinstance(value, nn.Module) else short(value))


def view_of(summary: Summary) -> TensorView:
    stats = summary.stats
    return TensorView(
        dtype=summary.dtype,
        shape=summary.shape,
        device=summary.device,
        layout=summary.layout,
        mean=stats.mean if stats else None,
        std=stats.std if stats else None,
        min=stats.min if stats else None,
        max=stats.max if stats else None,
        nan=stats.nan if stats else 0,
        inf=stats.posinf + stats.neginf if stats else 0,
        zero=stats.zero if stats else 0,
        count=stats.count if stats else 0,
        sampled=stats.sampled if stats else None,
        nbytes=summary.nbytes,
        requires_grad=summary.requires_grad,
        note=summary.note,
    )


def present(value: Any, *, limit: int | None = None) -> View:
    """A value as a view of bounded size."""
    if is_tensor(value):
        line = tensor_view(value, limit=limit)
        values = small_values(value)
        return Group((line, Text(values))) if values else line
    if isinstance(value, nn.Module):
        return Text(module_line(value))
    if tensors_in(value, most=1):
        return _container(value, limit)
    return Text(_repr(value))


def _container(value: Any, limit: int | None) -> Fields:
    """The items of a container in order: the tensor line of a tensor, one line of anything else."""
    leaves = leaves_in(value, most=MOST_LEAVES + 1)
    items: list[tuple[str, View]] = []
    for place, leaf in leaves[:MOST_LEAVES]:
        if is_tensor(leaf):
            items.append((place, tensor_view(leaf, limit=limit)))
        else:
            items.append((place, Text(module_line(leaf) if isinstance(leaf, nn.Module) else _one_line(leaf))))
    if len(leaves) > MOST_LEAVES:
        items.append(("…", Text("more; index to see them")))
    size = f"of {len(value)}" if isinstance(value, Sized) else ""
    return Fields((Span(type(value).__name__, "type"), Span(size, "dim")), tuple(items))


def _one_line(value: Any) -> str:
    if tensors_in(value, most=1):  # too deep, or a list that holds itself
        return shape_line(value)
    text = " ".join((repr(value[:MOST_WORD]) if isinstance(value, str) else _repr(value)).split())
    is_cut = len(text) > MOST_WORD or (isinstance(value, str) and len(value) > MOST_WORD)
    return text[:MOST_WORD] + ("…" if is_cut else "")


def small_values(tensor: torch.Tensor) -> str:
    """The values of a tensor of few elements; empty for any other."""
    try:
        with below_everything():
            values = dense_values(tensor)
            if values is None or not 0 < values.numel() <= MOST_VALUES:
                return ""
            return _rounded(values.cpu().tolist())
    except Exception:  # an odd dtype: there is nothing to list
        return ""


def _rounded(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(map(_rounded, values)) + "]"
    return f"{values:.4g}" if isinstance(values, float) else str(values)


def short(value: Any) -> str:
    """A value on one line: shapes, not values, for tensors; the value itself if it is one number."""
    if is_tensor(value):
        return _only_value(value) or shape_line(value)
    if tensors_in(value, most=1):
        return shape_line(value)
    return " ".join(_repr(value).split())[:120]


def _only_value(tensor: torch.Tensor) -> str:
    try:
        with below_everything():
            values = dense_values(tensor)
            return f"{values.item():.6g}" if values is not None and values.numel() == 1 else ""
    except Exception:  # an odd dtype: there is nothing to show
        return ""


def module_line(module: nn.Module) -> str:
    """A module on one line: its class and what its `extra_repr` says."""
    try:
        extra = " ".join(module.extra_repr().split())
    except Exception:  # the user's extra_repr may fail on a half-built module
        extra = ""
    return f"{type(module).__name__}({extra[:100]})"


def _repr(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= MOST_CHARACTERS else value[:MOST_CHARACTERS] + "…"
    shortener = reprlib.Repr()
    shortener.maxother = shortener.maxstring = MOST_CHARACTERS
    shortener.maxlist = shortener.maxtuple = shortener.maxdict = shortener.maxset = 40
    try:
        return shortener.repr(value)[:MOST_CHARACTERS]
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
