"""Products whose sizes do not fit: Linear, `@`, matmul, mm, bmm."""

from __future__ import annotations

import math
import re

from torch import Tensor, nn

from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, Operand, sizes

__all__: list[str] = []


@says(
    r"mat1 and mat2 shapes cannot be multiplied",
    r"Expected size for first two dimensions of batch2",
    r"batch1 and batch2 must have",
    r"size mismatch, got",
    r"inconsistent tensor size",
    r"both arguments to (?:linear|matmul) need to be at least 1D",
)
def _products(facts: Facts, found: re.Match[str]) -> Explanation | None:
    if isinstance(facts.module, nn.Linear) and facts.input is not None:
        return _linear(facts, facts.module, facts.input)
    pair = facts.pair()
    if pair is None:
        return _by_message(facts)
    name = facts.op.rpartition(".")[2]
    if name == "linear":
        return _own_linear(facts, *pair)
    if name in ("@", "matmul", "mm", "bmm"):
        return _matmul(facts, *pair)
    if name in ("addmm", "baddbmm") and len(facts.tensors) > 2:
        return _matmul(facts, *facts.tensors[1:3])
    return None


def _linear(facts: Facts, module: nn.Linear, given: Tensor) -> Explanation | None:
    shape, wanted = list(given.shape), module.in_features
    if not shape or shape[-1] == wanted:
        return None
    cause = f"{facts.subject} got {shape}: last dimension is {shape[-1]}, weight wants {wanted}"
    if wanted in shape[:-1]:
        place = len(shape) - 2 - shape[-2::-1].index(wanted)
        return Explanation(
            f"{cause}; dimension {place} is {wanted}", f"transpose({place}, -1) before it, and back after it"
        )
    for first in range(1, len(shape) - 1):
        if math.prod(shape[first:]) == wanted:
            return Explanation(
                cause, f"flatten({first}) before it: {'×'.join(map(str, shape[first:]))} is {wanted}"
            )
    return Explanation(
        cause, f"nn.Linear({shape[-1]}, {module.out_features}), or give it what has {wanted} features"
    )


def _own_linear(facts: Facts, given: Operand, weight: Operand) -> Explanation | None:
    shape, own = list(given.value.shape), list(weight.value.shape)
    if not shape or len(own) != 2 or shape[-1] == own[1]:
        return None
    cause = f"{facts.subject}: {sizes(given.value)} and weight {own}: last dimension is {shape[-1]}, "
    if shape[-1] == own[0]:
        cause += "weight is [in, out] where [out, in] is wanted"
        return Explanation(cause, f"F.linear({given.name}, {weight.name}.t())")
    return Explanation(cause + f"weight wants {own[1]}", f"a weight of [out, {shape[-1]}]")


def _matmul(facts: Facts, left: Operand, right: Operand) -> Explanation | None:
    a, b = list(left.value.shape), list(right.value.shape)
    head = f"{facts.subject}: {a} and {b}: "
    if not a or not b:
        return Explanation(head + "a scalar cannot be multiplied so", "`*` multiplies by a scalar")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        cause = f"{head}the inner dimensions {a[-1]} and {inner} differ"
        if len(b) > 1 and a[-1] == b[-1]:
            return Explanation(cause, f"{right.name}.transpose(-2, -1): its last dimension is {b[-1]}")
        if len(a) > 1 and a[-2] == inner:
            return Explanation(cause, f"{left.name}.transpose(-2, -1): its dimension -2 is {inner}")
        return Explanation(
            cause, f"the last dimension of {left.name} and dimension -2 of {right.name} must agree"
        )
    if a[:-2] != b[:-2]:
        return Explanation(
            f"{head}the batch dimensions {_listed(a[:-2])} and {_listed(b[:-2])} differ",
            f"expand or repeat the smaller one, or look at who made {right.name}",
        )
    return None


def _by_message(facts: Facts) -> Explanation | None:
    """The operands were made in the same line and are gone: the message has their sizes, as matrices."""
    found = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", facts.message)
    if found is None:
        return None
    rows, last, first, columns = found.groups()
    return Explanation(
        f"{facts.subject}: matrices of {rows}×{last} and {first}×{columns}: "
        f"the inner dimensions {last} and {first} differ",
        "transpose one of them" if last == columns or rows == first else "look at who made them",
    )


def _listed(shape: list[int]) -> str:
    return str(shape[0]) if len(shape) == 1 else str(shape)


@says(r"must be a matrix", r"must be a 3D tensor", r"must be a 2D tensor", r"1D tensors expected")
def _rank(facts: Facts, found: re.Match[str]) -> Explanation | None:
    wanted = {"mm": 2, "bmm": 3, "mv": 2, "addmm": 2, "dot": 1}.get(facts.op.rpartition(".")[2])
    wrong = next((each for each in facts.tensors if wanted and each.value.dim() != wanted), None)
    if wrong is None:
        return None
    cause = (
        f"{facts.subject}: {wrong.name} is {sizes(wrong.value)}, which has {wrong.value.dim()} dimensions; "
        f"{facts.op} wants {wanted} dimensions"
    )
    return Explanation(cause, "torch.matmul or `@` takes any number of them")
