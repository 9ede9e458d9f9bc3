"""What each module of a copy takes and makes in one call, to find where two calls begin to differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.graphs import shape_of_output
from layerstep._torch.saved import saved_tensor, saved_word
from layerstep.doctor.loss_operations import signed
from layerstep.doctor.loss_terms import operation
from layerstep.hooks.temporary import watching_copy
from layerstep.tensors.containers import tensors_of

__all__ = ["Trace", "Traced", "first_difference", "largest", "outputs_differ", "softmax_sizes", "trace"]

MOST_BYTES = 512 << 20
"""Of all values that one trace keeps; what comes later is left out."""


MOST_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Traced:
    """One call of a module."""

    path: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(slots=True)
class Trace:
    """The calls of the modules of a copy, in the order in which they end."""

    calls: list[Traced] = field(default_factory=list)
    output: Any = None


def trace(model: nn.Module, call: Callable[[], Any]) -> Trace:
    """Call a copy of a model, and keep what its modules take and make."""
    made, room = Trace(), [MOST_BYTES]

    def note(path: str, given: Any, output: Any) -> None:
        taken, returned = _copies(given), _copies(output)
        room[0] -= sum(t.numel() * t.element_size() for t in (*taken, *returned))
        if room[0] > 0:
            made.calls.append(Traced(path, taken, returned))

    with watching_copy(model, note):
        made.output = call()
    return made


def _copies(value: Any) -> tuple[Tensor, ...]:
    return tuple(each.detach().clone() for each in tensors_of(value))


def first_difference(
    one: Trace, other: Trace, differ: Callable[[Tensor, Tensor], bool] | None = None
) -> str | None:
    """The path of the first module that makes other values of the same inputs; None if it is not a part.

    `differ` says whether two tensors differ where it matters.
    """
    differ = differ or _differ
    for mine, theirs in zip(one.calls, other.calls, strict=False):
        if mine.path != theirs.path:
            return None
        if not mine.path:
            continue
        same_inputs = not _any(mine.inputs, theirs.inputs, differ)
        if same_inputs and _any(mine.outputs, theirs.outputs, differ):
            return mine.path
    return None


def _any(
    mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...], differ: Callable[[Tensor, Tensor], bool]
) -> bool:
    return any(differ(one, other) for one, other in zip(mine, theirs, strict=False))


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or not bool(((one == other) | ((one != one) & (other != other))).all())


def outputs_differ(one: Any, other: Any) -> float:
    """The largest difference between two outputs of a model; infinite where shapes or NaNs differ."""
    mine, theirs = tensors_of(one), tensors_of(other)
    if [t.shape for t in mine] != [t.shape for t in theirs]:
        return math.inf
    gap = 0.0
    for a, b in zip(mine, theirs, strict=True):
        if not _differ(a, b) or not a.numel():
            continue
        far = (a.double() - b.double()).abs().nan_to_num(nan=math.inf)
        gap = max(gap, float(far[_unequal(a, b)].max()))
    return gap


def _unequal(one: Tensor, other: Tensor) -> Tensor:
    return ~((one == other) | ((one != one) & (other != other)))


def largest(output: Any) -> float:
    """The largest size of a number in an output."""
    sizes = [t.double().abs().nan_to_num(nan=0.0).max() for t in tensors_of(output) if t.numel()]
    return float(torch.stack(sizes).max()) if sizes else 0.0


def softmax_sizes(output: Any) -> set[int]:
    """Over how many values the softmaxes and attentions behind an output run, as its graph tells."""
    waiting: list[Any] = [t.grad_fn for t in tensors_of(output)]
    seen, sizes = set[Any](), set[int]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
        shape = shape_of_output(node)
        if operation(node) in ("Softmax", "LogSoftmax", "SafeSoftmax") and shape:
            sizes.add(shape[signed(saved_word(node, "dim"))])
        elif operation(node).startswith("ScaledDotProduct"):
            key = saved_tensor(node, "key")
            sizes.update([int(key.shape[-2])] if key is not None else [])
    return sizes
