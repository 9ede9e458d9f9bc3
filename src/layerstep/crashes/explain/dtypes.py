"""Tensors of two kinds or of two places: dtypes and devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, dtype_of
from layerstep.tensors.shapes import dtype_name, shape_line

__all__ = ["move"]


def _taking_part(facts: Facts) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the failing call was about: the module's input and weights, or the operands."""
    if facts.is_layer and facts.module is not None:
        for name, value in facts.given():
            if is_tensor(value):
                yield name, value
        yield from facts.module.named_parameters(recurse=False)
        yield from facts.module.named_buffers(recurse=False)
    else:
        yield from ((operand.name, operand.value) for operand in facts.tensors)


@says(
    r"must have the same dtype",
    r"expected scalar type (?!Long)",
    r"expected (?:m1 and m2 to have|both)",
    r"Input type \((?!torch\.cuda).*\) and (?:weight|bias) type \((?!torch\.cuda).*\) should be the same",
    r"expected .* to have (?:the same )?dtype",
    r"not implemented for '(\w+)'",
    r"result type \w+ can't be cast to",
    r"must be the same dtype",
)
def _dtype(facts: Facts, found: re.Match[str]) -> Explanation | None:
    if "not implemented for" in found[0]:
        return _no_kernel(facts, found[1])
    parts = list(_taking_part(facts))
    given = next(((name, value) for name, value in parts), None)
    other = next(((name, value) for name, value in parts if given and value.dtype != given[1].dtype), None)
    if given is None or other is None:
        return None
    shape = shape_line(given[1])
    head = f"{facts.subject} got {shape}" if facts.is_layer else f"{facts.subject}: {shape}"
    cause = f"{head}: {given[0]} is {dtype_of(given[1])}, {other[0]} is {dtype_of(other[1])}"
    if given[1].dtype is torch.float64 and other[1].dtype is torch.float32:
        cause += " (numpy and Python make float64)"
    return Explanation(cause, _fix(given, other))


def _fix(given: tuple[str, Tensor], other: tuple[str, Tensor]) -> str:
    (name, value), (_, against) = given, other
    mine, theirs = value.dtype, against.dtype
    if mine is torch.uint8 and theirs.is_floating_point:
        return f"{name}.float() / 255 for pictures"
    if not mine.is_floating_point and theirs is torch.float32:
        return f"{name}.float(); or is an Embedding missing before it?"
    if mine is torch.float64 and theirs is torch.float32:
        return f"{name}.float(), or dtype=torch.float32 where it is made"
    low = (torch.float16, torch.bfloat16)
    if mine in low and theirs is torch.float32:
        return f"{name}.float(), the model in {dtype_name(mine)} as well, or torch.autocast around it"
    if theirs in low:
        return f"{name}.to({against.dtype}), or torch.autocast and weights in float32"
    return f"{name}.to({theirs})"


def _no_kernel(facts: Facts, kind: str) -> Explanation:
    operation = re.search(r'"(\w+)" not implemented for', facts.message)
    what = operation[1] if operation else facts.op
    inputs = ", ".join(f"{name} {shape_line(value)}" for name, value in _taking_part(facts))
    fix = ".float() before it"
    if kind in ("Half", "BFloat16"):
        fix = ".float() before it: not every operation has a CPU kernel for half precision"
    return Explanation(f"{facts.subject} got {inputs}: {what} does not work on {kind} here", fix)


@says(
    r"is not on the expected device",
    r"Expected all tensors to be on the same device",
    r"Input type \(torch\.(?:cuda\.)?\w+Tensor\) and (?:weight|bias) type "
    r"\(torch\.(?:cuda\.)?\w+Tensor\) should be the same",
    r"Expected object of device type",
    r"indices should be either on (?:cpu|\w+) or on the same device",
)
def _device(facts: Facts, found: re.Match[str]) -> Explanation | None:
    parts = list(_taking_part(facts))
    given = parts[0] if parts else None
    other = next(((name, value) for name, value in parts if given and value.device != given[1].device), None)
    if given is None or other is None:
        names = sorted(set(re.findall(r"\b(?:cpu|meta|mps|(?:cuda|xpu|hpu)(?::\d+)?)\b", facts.message)))
        where = " and ".join(names) or "two devices"
        return Explanation(
            f"{facts.subject}: tensors are on {where}",
            "`.to(device)` of the inputs and of what forward makes itself",
        )
    (name, value), (against, own) = given, other
    head = f"{facts.subject} got {shape_line(value)}" if facts.is_layer else facts.subject
    cause = f"{head}: {name} is on {value.device}, {against} is on {own.device}"
    return Explanation(cause, move(name, value.device, against=against, there=own.device))


def move(name: str, here: torch.device, *, against: str, there: torch.device) -> str:
    """How to bring two tensors to one device."""
    if here.type == "meta":
        return f"a meta tensor has no values, .to({str(there)!r}) cannot move it: make {name} on {there}"
    if there.type == "meta":
        return (
            f"{against} has no values yet, .to({str(here)!r}) cannot move it: to_empty() and load its values"
        )
    return f"{name}.to({str(there)!r}); what forward makes itself: device=x.device"


@says(r"Found dtype (\w+) but expected (\w+)")
def _gradient_dtype(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{facts.subject}: a gradient of {found[1]} came where the forward had {found[2]}",
        "a target or a factor of the loss has another dtype than its input: target.float()",
    )
