"""Where a loss that is not finite began, as the graph behind it and the parameters tell.

It is asked before the backward pass, when the graph still holds its values. A second run would name the line,
but it needs a copy of every input: 0.3 ms a step, measured, which is more than the budget of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerstep._torch import node_number
from layerstep._torch.saved import saved_by, saved_tensor
from layerstep.doctor.measuring import is_readable

__all__ = ["Birth", "birth_of", "is_bad"]

MOST_NODES = 5000


class Birth(NamedTuple):
    """What is known of the first value that is not finite."""

    words: str
    parameters: tuple[str, ...] = ()
    """The bad parameters, or the nearest ones before the operation."""
    is_in_loss: bool = False
    """The operation comes after the last layer."""
    is_from_operation: bool = False
    """Parameters and inputs are finite."""


def is_bad(tensor: Tensor) -> bool:
    """Does a tensor hold a NaN or an infinity? False where it cannot be read."""
    if not tensor.is_floating_point() or not is_readable(tensor):
        return False
    values = tensor.detach()
    return not math.isfinite(values.sum().item()) and not bool(torch.isfinite(values).all())


def birth_of(
    loss: Tensor, parameters: Iterable[tuple[str, Tensor]], inputs: Iterable[tuple[str, Tensor]]
) -> Birth:
    """Look at the parameters, the inputs, and the operations in their order."""
    named = list(parameters)
    if bad := tuple(name for name, parameter in named if is_bad(parameter)):
        return Birth(f"the parameter {bad[0]} is not finite", bad)
    for name, tensor in inputs:
        if is_bad(tensor):
            return Birth(f"{name} of the model is not finite")
    nodes = _nodes(loss.grad_fn)
    names = {id(parameter): name for name, parameter in named}
    for node in sorted(nodes, key=node_number):
        blamed = _blame(node)
        if blamed is not None:
            culprit, words = blamed
            near = _parameters_below(culprit, names)
            return Birth(
                words, near[:1], is_in_loss=not _is_below_a_layer(culprit, nodes), is_from_operation=True
            )
    return Birth("the operation was not found", is_from_operation=True)


def _operation(node: Any) -> str:
    return str(node.name()).rpartition("::")[2].partition("Backward")[0]


def _nodes(top: Any) -> list[Any]:
    waiting, seen = [top] if top is not None else [], dict[int, Any]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if id(node) in seen or getattr(node, "variable", None) is not None:
            continue
        seen[id(node)] = node
        waiting += [below for below, _ in node.next_functions if below is not None]
    return list(seen.values())


_DOMAINS: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "Log": ("self", lambda t: t <= 0, "log of a number that is not positive"),
    "Log2": ("self", lambda t: t <= 0, "log2 of a number that is not positive"),
    "Log10": ("self", lambda t: t <= 0, "log10 of a number that is not positive"),
    "Div": ("other", lambda t: t == 0, "a division by zero"),
    "Reciprocal": ("result", lambda t: ~torch.isfinite(t), "a division by zero"),
    "Rsqrt": ("result", lambda t: ~torch.isfinite(t), "rsqrt of a number that is not positive"),
    "Sqrt": ("result", lambda t: ~torch.isfinite(t), "sqrt of a negative number"),
    "Exp": ("result", lambda t: ~torch.isfinite(t), "exp of a large number"),
    "Acos": ("self", lambda t: t.abs() > 1, "acos of a number beyond ±1"),
    "Asin": ("self", lambda t: t.abs() > 1, "asin of a number beyond ±1"),
}


def _blame(node: Any) -> tuple[Any, str] | None:
    """The node that made the first bad value, as this one tells: itself, or the one before it."""
    operation = _operation(node)
    known = _DOMAINS.get(operation)
    if known is not None:
        held = saved_tensor(node, known[0])
        if held is not None and is_readable(held) and bool(known[1](held.detach()).any()):
            return node, known[2]
    result = saved_tensor(node, "result")
    if result is not None and is_bad(result):
        return node, f"{operation.lower()} gave values that are not finite"
    for held in saved_by(node):
        if isinstance(held, Tensor) and is_bad(held):
            below = [each for each, _ in node.next_functions if each is not None]
            made = below[0] if below else node
            return made, f"{_operation(made).lower()} gave values that are not finite"
    return None


def _parameters_below(node: Any, names: dict[int, str]) -> tuple[str, ...]:
    """The parameters that are nearest below a node."""
    waiting, seen = [node], set[int]()
    while waiting and len(seen) < MOST_NODES:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        variable = getattr(each, "variable", None)
        if variable is not None and id(variable) in names:
            return (names[id(variable)],)
        waiting += [below for below, _ in each.next_functions]
    return ()


def _is_below_a_layer(culprit: Any, nodes: list[Any]) -> bool:
    """Does a later operation use a parameter? Then the culprit is in the model."""
    own = node_number(culprit)
    return any(
        node_number(node) > own
        and any(getattr(below, "variable", None) is not None for below, _ in node.next_functions)
        for node in nodes
    )
