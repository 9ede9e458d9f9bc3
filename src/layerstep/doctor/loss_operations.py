"""The operations that losses are made of: for each node of autograd, the function that makes its value again.

The attributes of nodes were seen on torch 2.13.0. A node that lacks one makes the loss not repeatable, which
is said; the loss of a recipe is compared with that of the run before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from layerstep._torch.graphs import dtype_of_output, shape_of_output
from layerstep._torch.saved import saved_word

__all__ = ["BINARY", "OPERATIONS", "Operation", "operation_of", "signed"]

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
_END = 1 << 62
Run = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation with one input that has a gradient."""

    make: Callable[[Any, tuple[str, ...]], Run]
    """The function for a node; it is called with the input, then with the tensors that the node holds."""
    tensors: tuple[str, ...] = ()
    """The tensors that the node may hold and the function needs."""


def operation_of(node: Any) -> str:
    """`Softmax` of `SoftmaxBackward0`."""
    return str(node.name()).rpartition("::")[2].partition("Backward")[0] if node is not None else ""


def signed(value: Any) -> int:
    """Torch gives -1 as an unsigned number of 64 bits."""
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def _plain(run: Run) -> Operation:
    return Operation(lambda node, has: run)


def _by_words(run: Run, **words: str) -> Operation:
    """A function with keyword arguments that the node holds under these names."""

    def make(node: Any, has: tuple[str, ...]) -> Run:
        kept = {key: signed(saved_word(node, name)) for key, name in words.items()}
        return lambda x: run(x, **kept)

    return Operation(make)


def _view(node: Any, has: tuple[str, ...]) -> Run:
    shape = shape_of_output(node)
    assert shape is not None

    def run(x: Tensor) -> Tensor:
        if x.numel() == math.prod(shape):
            return x.reshape(shape)
        return x.reshape(-1, *shape[1:])  # a batch of another size

    return run


def _expand(node: Any, has: tuple[str, ...]) -> Run:
    shape = shape_of_output(node)
    assert shape is not None
    return lambda x: x.expand(shape)


def _cast(node: Any, has: tuple[str, ...]) -> Run:
    dtype = dtype_of_output(node)
    return lambda x: x if x.dtype is torch.float64 else x.to(dtype)


def _slice(node: Any, has: tuple[str, ...]) -> Run:
    dim = signed(saved_word(node, "dim"))
    start, end, step = (signed(saved_word(node, word)) for word in ("start", "end", "step"))
    parts = slice(start, None if end > _END else end, step)
    return lambda x: x[(slice(None),) * (dim % x.ndim) + (parts,)]


def _select(node: Any, has: tuple[str, ...]) -> Run:
    dim, index = signed(saved_word(node, "dim")), signed(saved_word(node, "index"))
    return lambda x: x.select(dim, index)


def _permute(node: Any, has: tuple[str, ...]) -> Run:
    dims = tuple(signed(dim) for dim in saved_word(node, "dims"))
    return lambda x: x.permute(dims)


def _squeeze(node: Any, has: tuple[str, ...]) -> Run:
    dim = saved_word(node, "dim")
    if isinstance(dim, int):
        return lambda x: x.squeeze(signed(dim))
    if dim is not None:
        return lambda x: x.squeeze(tuple(signed(each) for each in dim))
    return lambda x: x.squeeze()


def _pow(node: Any, has: tuple[str, ...]) -> Run:
    exponent = saved_word(node, "exponent")
    return lambda x: x**exponent


def _reduce(whole: Run) -> Callable[[Any, tuple[str, ...]], Run]:
    def make(node: Any, has: tuple[str, ...]) -> Run:
        dims, keep = saved_word(node, "dim"), bool(saved_word(node, "keepdim"))
        if not dims:
            return lambda x: whole(x)
        of = tuple(signed(dim) for dim in dims)
        return lambda x: whole(x, dim=of, keepdim=keep)

    return make


def _nll(node: Any, has: tuple[str, ...]) -> Run:
    reduction, ignored = _reduction(node), signed(saved_word(node, "ignore_index"))

    def run(x: Tensor, *tensors: Tensor) -> Tensor:
        held = dict(zip(has, tensors, strict=True))
        return F.nll_loss(
            x, held["target"], weight=held.get("weight"), ignore_index=ignored, reduction=reduction
        )

    return run


def _criterion(function: Run, *words: str) -> Callable[[Any, tuple[str, ...]], Run]:
    """A loss function with `target`, perhaps weights, and these numbers."""

    def make(node: Any, has: tuple[str, ...]) -> Run:
        numbers = {word: float(saved_word(node, word)) for word in words}
        reduction = _reduction(node)

        def run(x: Tensor, *tensors: Tensor) -> Tensor:
            held = dict(zip(has, tensors, strict=True))
            return function(x, held.pop("target"), reduction=reduction, **held, **numbers)

        return run

    return make


def _reduction(node: Any) -> str:
    return _REDUCTIONS[int(saved_word(node, "reduction"))]


def _gather(node: Any, has: tuple[str, ...]) -> Run:
    dim = signed(saved_word(node, "dim"))
    return lambda x, index: x.gather(dim, index)


def _masked_fill(node: Any, has: tuple[str, ...]) -> Run:
    return lambda x, mask: x.masked_fill(mask, 0.0)


OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(("View", "UnsafeView", "ReshapeAlias", "Reshape"), Operation(_view)),
    **dict.fromkeys(("Alias", "Clone", "Contiguous"), _plain(lambda x: x)),
    "ToCopy": Operation(_cast),
    "Expand": Operation(_expand),
    "Slice": Operation(_slice),
    "Select": Operation(_select),
    "Permute": Operation(_permute),
    "Squeeze": Operation(_squeeze),
    "T": _plain(lambda x: x.t()),
    "Transpose": _by_words(torch.transpose, dim0="dim0", dim1="dim1"),
    "Unsqueeze": _by_words(torch.unsqueeze, dim="dim"),
    "LogSoftmax": _by_words(torch.log_softmax, dim="dim"),
    "Softmax": _by_words(torch.softmax, dim="dim"),
    "Sigmoid": _plain(torch.sigmoid),
    "LogSigmoid": _plain(F.logsigmoid),
    "Tanh": _plain(torch.tanh),
    "Relu": _plain(torch.relu),
    "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Log1P": _plain(torch.log1p),
    "Sqrt": _plain(torch.sqrt),
    "Neg": _plain(torch.neg),
    "Abs": _plain(torch.abs),
    "Pow": Operation(_pow),
    "Mean": Operation(_reduce(torch.mean)),
    "Sum": Operation(_reduce(torch.sum)),
    "Logsumexp": Operation(_reduce(torch.logsumexp)),
    "Gather": Operation(_gather, ("index",)),
    "MaskedFill": Operation(_masked_fill, ("mask",)),
    "NllLoss": Operation(_nll, ("target", "weight")),
    "NllLoss2D": Operation(_nll, ("target", "weight")),
    "BinaryCrossEntropy": Operation(_criterion(F.binary_cross_entropy), ("target", "weight")),
    "BinaryCrossEntropyWithLogits": Operation(
        _criterion(F.binary_cross_entropy_with_logits), ("target", "weight", "pos_weight")
    ),
    "MseLoss": Operation(_criterion(F.mse_loss), ("target",)),
    "SmoothL1Loss": Operation(_criterion(F.smooth_l1_loss, "beta"), ("target",)),
    "HuberLoss": Operation(_criterion(F.huber_loss, "delta"), ("target",)),
}


def _scaled(sign: int) -> Callable[[Any], Run]:
    def make(node: Any) -> Run:
        alpha = saved_word(node, "alpha")
        factor = sign * (1 if alpha is None else alpha)
        return lambda x, y: x + y * factor if factor != 1 else x + y

    return make


BINARY: dict[str, Callable[[Any], Run]] = {
    "Add": _scaled(1),
    "Sub": _scaled(-1),
    "Mul": lambda node: lambda x, y: x * y,
    "Div": lambda node: lambda x, y: x / y,
}
"""Operations with two operands, of which one may be a constant."""
