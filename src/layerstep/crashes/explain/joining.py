"""Tensors that do not go together: broadcasting, cat, stack, expand."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, Operand, sizes

__all__: list[str] = []


@says(
    r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton "
    r"dimension (\d+)"
)
def _broadcast(facts: Facts, found: re.Match[str]) -> Explanation | None:
    one, other, dimension = map(int, found.groups())
    pair = facts.pair()
    if pair is None:
        return Explanation(f"{facts.subject}: dimension {dimension} is {one} here and {other} there")
    left, right = pair
    cause = (
        f"{facts.subject}: {sizes(left.value)} and {sizes(right.value)} do not broadcast: "
        f"dimension {dimension} is {one} and {other}"
    )
    return Explanation(cause, _broadcast_fix(left, right, dimension))


def _broadcast_fix(left: Operand, right: Operand, dimension: int) -> str:
    a, b = list(left.value.shape), list(right.value.shape)
    small, large = (right, left) if len(b) < len(a) else (left, right)
    few, many = list(small.value.shape), list(large.value.shape)
    if len(few) < len(many) and few == many[: len(few)]:
        more = len(many) - len(few)
        index = ", ".join([":"] * len(few) + ["None"] * more)
        how = f"{small.name}.unsqueeze(-1)" if more == 1 else f"{small.name}[{index}]"
        return f"{how}, that is {small.name}[{index}]: shapes are aligned at their ends" if more == 1 else how
    if sorted(a) == sorted(b) and len(a) == len(b) and len(a) > 1:
        return f"they are permuted: {right.name}.transpose(…) or .permute(…) makes {a}"
    if len(a) == len(b) and sum(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)) == 1:
        return _cut(left, right, dimension)
    return f"make dimension {dimension} of both the same, or 1"


def _cut(left: Operand, right: Operand, dimension: int) -> str:
    longer, shorter = (
        (left, right) if left.value.shape[dimension] > right.value.shape[dimension] else (right, left)
    )
    size = shorter.value.shape[dimension]
    index = ", ".join([":"] * dimension + [f":{size}"])
    return f"{longer.name}[{index}] cuts the longer one, or make {shorter.name} longer"


@says(
    r"Sizes of tensors must match except in dimension (\d+)\. Expected size (\d+) but got size (\d+) "
    r"for tensor number (\d+)"
)
def _cat_sizes(facts: Facts, found: re.Match[str]) -> Explanation | None:
    along, wanted, got, number = map(int, found.groups())
    parts = _parts(facts)
    if parts is None or len(parts) <= number:
        return None
    first, wrong = parts[0], parts[number]
    place = next(
        (i for i, (a, b) in enumerate(zip(first.shape, wrong.shape, strict=False)) if i != along and a != b),
        along,
    )
    cause = (
        f"{_op(facts)} along dimension {along}: tensor {number} is {sizes(wrong)} and tensor 0 is "
        f"{sizes(first)}: dimension {place} is {got}, not {wanted}"
    )
    return Explanation(cause, _other_dimension(parts, along), tuple(_listed(parts)))


def _other_dimension(parts: list[Tensor], along: int) -> str:
    """Would they fit along another dimension?"""
    for dimension in range(parts[0].dim()):
        rests = {(*part.shape[:dimension], *part.shape[dimension + 1 :]) for part in parts}
        if dimension != along and len(rests) == 1:
            return f"dim={dimension} fits, if that is meant"
    return "all but the dimension they are joined along must agree"


@says(r"Tensors must have same number of dimensions: got (\d+) and (\d+)")
def _cat_dimensions(facts: Facts, found: re.Match[str]) -> Explanation | None:
    parts = _parts(facts)
    if not parts:
        return None
    number = next((i for i, part in enumerate(parts) if part.dim() != parts[0].dim()), None)
    if number is None:
        return None
    wrong = parts[number]
    cause = (
        f"{_op(facts)}: tensor {number} is {sizes(wrong)} with {wrong.dim()} dimensions, "
        f"tensor 0 is {sizes(parts[0])} with {parts[0].dim()}"
    )
    return Explanation(cause, "unsqueeze the one that lacks a dimension", tuple(_listed(parts)))


@says(
    r"stack expects each tensor to be equal size, but got (\[[^]]*\]) at entry (\d+) and (\[[^]]*\]) "
    r"at entry (\d+)"
)
def _stack(facts: Facts, found: re.Match[str]) -> Explanation:
    one, at, other, number = found.groups()
    fix = "pad them (nn.utils.rnn.pad_sequence), or torch.cat along a dimension that they share"
    if any("collate" in name for name in facts.functions):
        fix = "the samples of a batch differ: pad or crop them, in the dataset or in a collate_fn of your own"
    return Explanation(f"{_op(facts)}: tensor {number} is {other}, tensor {at} is {one}", fix)


@says(
    r"The expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\) at "
    r"non-singleton dimension (\d+)"
)
def _expand(facts: Facts, found: re.Match[str]) -> Explanation:
    wanted, there, dimension = found.groups()
    shapes = re.search(r"Target sizes: (\[.*?\])\.\s+Tensor sizes: (\[.*?\])", facts.message)
    what = f"{shapes[2]} to {shapes[1]}: " if shapes else ""
    return Explanation(
        f"{facts.subject}: {what}dimension {dimension} is {there}, only one of size 1 expands to {wanted}",
        "repeat(…) copies what has another size than 1",
    )


@says(
    r"shape mismatch: value tensor of shape (\[.*?\]) cannot be broadcast to indexing result of shape "
    r"(\[.*?\])"
)
def _assigned(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{facts.line or facts.subject}: the value is {found[1]}, and the place it is written to {found[2]}",
        "index another part, or reshape the value",
    )


def _op(facts: Facts) -> str:
    return facts.op or facts.subject


def _parts(facts: Facts) -> list[Tensor] | None:
    values: Any = facts.operands[0].value if facts.operands else facts.inner.get("tensors")
    if isinstance(values, tuple | list) and all(is_tensor(value) for value in values):
        return list(values)
    return None


def _listed(parts: list[Tensor]) -> list[str]:
    most = 12
    rows = [f"tensor {i}: {sizes(part)}" for i, part in enumerate(parts[:most])]
    return rows + ([f"… {len(parts) - most} more"] if len(parts) > most else [])
