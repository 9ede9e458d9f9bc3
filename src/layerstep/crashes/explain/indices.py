"""Indices that point outside: embeddings, gather, subscripts, masks."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, sizes
from layerstep.tensors.format import place
from layerstep.tensors.shapes import shape_line

__all__ = ["first_outside"]


def first_outside(values: Tensor, low: int, high: int) -> tuple[int, tuple[int, ...], int] | None:
    """The first value below `low` or not below `high`: it, its index, and how many there are."""
    if values.is_meta or values.is_floating_point():
        return None
    outside = (values < low) | (values >= high)
    count = int(outside.sum())
    if not count:
        return None
    if not values.dim():
        return int(values), (), 1
    index = tuple(int(i) for i in outside.nonzero()[0])
    return int(values[index]), index, count


def _more(count: int) -> str:
    return f" ({count} of them)" if count > 1 else ""


@says(r"index out of range in self", r"device-side assert triggered", r"vectorized_gather_kernel|indexSelect")
def _embedding(facts: Facts, found: re.Match[str]) -> Explanation | None:
    values, weight = _looked_up(facts)
    if values is None or weight is None:
        return _on_device(found)
    size = weight.shape[0]
    wrong = first_outside(values, 0, size)
    if wrong is None:
        return _on_device(found)
    index, at, count = wrong
    cause = (
        f"{_name(facts)} got {sizes(values)}: index {index} at {place(at)}{_more(count)}, "
        f"its rows are 0 to {size - 1} (vocab {size})"
    )
    return Explanation(cause, _embedding_fix(index, size, is_position=bool(at) and at[-1] == index))


def _embedding_fix(index: int, size: int, *, is_position: bool) -> str:
    if index == -100:
        return "-100 marks labels that the loss ignores: labels were given where tokens are wanted"
    if index < 0:
        return "a negative index counts from no end here: was padding filled with it? use padding_idx"
    if is_position:  # 0, 1, 2, … was looked up
        return f"the sequence is longer than {size} positions: cut it, or make the table longer"
    if index == size:
        return f"one too far: num_embeddings={size + 1}, or len(tokenizer) after tokens were added"
    return "num_embeddings=len(tokenizer), or resize_token_embeddings; is it another tokenizer's output?"


def _looked_up(facts: Facts) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(facts.module, nn.Embedding | nn.EmbeddingBag):
        return facts.input, facts.module.weight
    values, weight = facts.inner.get("input"), facts.inner.get("weight")
    return (
        values if is_tensor(values) else None,
        weight if is_tensor(weight) else None,
    )


def _on_device(found: re.Match[str]) -> Explanation | None:
    if "device-side" not in found[0]:
        return None
    return Explanation(
        "an index was out of range on the GPU (an embedding, gather or a loss), at this call or at "
        "one before it",
        "CUDA_LAUNCH_BLOCKING=1 names the call, a batch on the CPU names the index; this process "
        "cannot go on",
    )


@says(r"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int")
def _not_indices(facts: Facts, found: re.Match[str]) -> Explanation:
    values = facts.input if facts.input is not None else facts.inner.get("input")
    return Explanation(
        f"{_name(facts)} got {shape_line(values)}: its input is indices, of int64 or int32",
        ".long() if these are token numbers; if they are vectors, the embedding was done already",
    )


def _name(facts: Facts) -> str:
    return facts.subject if facts.is_layer else facts.op or "embedding"


@says(r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)")
def _bounds(facts: Facts, found: re.Match[str]) -> Explanation:
    index, dimension, size = map(int, found.groups())
    owner = facts.operands[0] if facts.operands else None
    shape = sizes(owner.value) if owner is not None and is_tensor(owner.value) else ""
    at = _position(facts, index)
    of = f" of {owner.name} {shape}" if owner is not None and shape else ""
    cause = (
        f"{facts.subject}: index {index}{at} is outside of dimension {dimension}{of}: size {size}, "
        f"so 0 to {size - 1}"
    )
    return Explanation(cause, "look at who made the index" if at else f"the last one is {size - 1}, or -1")


def _position(facts: Facts, index: int) -> str:
    """Where in an index tensor the wrong one is."""
    for operand in facts.tensors[1:]:
        values = operand.value
        if values.is_meta or values.is_floating_point() or values.dtype is torch.bool:
            continue
        there = (values == index).nonzero()
        if len(there):
            return f" (at {place(tuple(int(i) for i in there[0]))} of {operand.name})"
    return ""


@says(r"too many indices for tensor of dimension (\d+)")
def _too_many(facts: Facts, found: re.Match[str]) -> Explanation:
    count = len(facts.operands) - 1
    owner = facts.operands[0] if facts.operands else None
    shape = f" {sizes(owner.value)}" if owner is not None and is_tensor(owner.value) else ""
    given = f"{count} indices" if count > 0 else "too many indices"
    return Explanation(
        f"{facts.subject}: {given} for {owner.name if owner else 'a tensor'}{shape}, which has "
        f"{found[1]} dimensions",
        "is a batch dimension missing, or was one squeezed away?",
    )


@says(
    r"shape of the mask (\[.*?\]) at index (\d+) does not match the shape of the indexed tensor "
    r"(\[.*?\]) at index"
)
def _mask(facts: Facts, found: re.Match[str]) -> Explanation:
    mask, dimension, shape = found.groups()
    return Explanation(
        f"{facts.subject}: the mask is {mask}, the tensor {shape}: dimension {dimension} differs",
        "a mask has the shape of the dimensions that it selects from",
    )
