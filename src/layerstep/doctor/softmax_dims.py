"""Over which dimension the softmax before a loss runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from layerstep._torch.graphs import shape_of_output
from layerstep._torch.saved import saved_word
from layerstep.doctor.loss_terms import MOVES, below, operation

__all__ = ["beside_classes", "not_last", "over_batch", "signed"]

MOST_NODES = 400
_ELEMENTWISE = (
    MOVES
    | {"Mean", "Sum", "Neg", "Mul", "Div"}
    | {"Add", "Sub", "Log", "Exp", "Pow", "Abs", "Clamp", "Xlogy", "KlDiv", "Logsumexp"}
)


def over_batch(top: Any, is_criterion: Callable[[Any], bool]) -> tuple[int, ...]:
    """The shape of a matrix that the loss takes the softmax of over its first dimension.

    It is looked for below operations that go element by element. A square one may be meant so: similarities
    of pairs.
    """
    waiting, seen = [top] if top is not None else [], set[int]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if operation(node) in ("Softmax", "LogSoftmax"):
            shape, dim = shape_of_output(node), signed(saved_word(node, "dim"))
            if shape and len(shape) == 2 and dim in (0, -2) and shape[0] != shape[1] and shape[1] > 1:
                return shape
        elif operation(node) in _ELEMENTWISE or is_criterion(node):
            waiting += below(node)
    return ()


def beside_classes(made: Any, given: Tensor | None) -> tuple[tuple[int, ...], int] | None:
    """The shape and the dimension of a softmax that does not run over the classes of `nll_loss`.

    Its input has them in the second dimension. A softmax over as many values is right, and so may be one of
    which some classes were cut away. One over another number, with the classes in another dimension, is not.
    """
    shape, dim = shape_of_output(made), signed(saved_word(made, "dim"))
    if not shape or dim is None or given is None or given.ndim < 2:
        return None
    dim, classes = dim % len(shape), given.shape[1]
    others = (size for place, size in enumerate(shape) if place != dim)
    return (tuple(shape), dim) if shape[dim] != classes and classes in others else None


def not_last(made: Any) -> tuple[tuple[int, ...], int] | None:
    """The same of `ctc_loss`, whose input has the classes in its last dimension."""
    shape = shape_of_output(made) if made is not None and operation(made) == "LogSoftmax" else None
    dim = signed(saved_word(made, "dim")) if shape else None
    return (
        (shape, dim % len(shape))
        if shape and dim is not None and dim % len(shape) != len(shape) - 1
        else None
    )


def signed(value: Any) -> int | None:
    """Torch gives -100 as an unsigned number of 64 bits."""
    return None if value is None else int(value) - (1 << 64) if int(value) >= 1 << 63 else int(value)
