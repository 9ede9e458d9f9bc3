"""Out of memory: what was asked for, and what is alive."""

from __future__ import annotations

import gc
import re
from typing import Any

import torch
from torch import Tensor

from layerstep.analysis.crash.explanation import Explanation, says
from layerstep.analysis.crash.facts import Facts
from layerstep.analysis.shapes import attempt, shape_line
from layerstep.analysis.words import human_bytes

__all__ = ["alive"]

MOST = 5


@says(
    r"out of memory", r"not enough memory: you tried to allocate (\d+) bytes", r"CUBLAS_STATUS_ALLOC_FAILED"
)
def _memory(facts: Facts, found: re.Match[str]) -> Explanation:
    asked = re.search(r"Tried to allocate ([\d.]+ [KMGT]iB)", facts.message)
    free = re.search(r"of which ([\d.]+ [KMGT]iB) is free", facts.message)
    size = asked[1] if asked else human_bytes(int(found[1])) if found.re.groups and found[1] else ""
    given = (
        f" on {', '.join(shape_line(value) for _, value in list(facts.given())[:3])}" if facts.args else ""
    )
    name = (
        facts.subject if facts.is_layer else facts.op or (type(facts.module).__name__ if facts.module else "")
    )
    cause = f"{name}{given}: out of memory".lstrip(": ")
    cause += f", it asked for {size}" if size else ""
    cause += f" where {free[1]} is free" if free else ""
    groups, largest = alive()
    rows = [f"{what}: {human_bytes(count)}" for what, count in groups.items() if count]
    rows += [f"alive: {shape_line(tensor)}, {human_bytes(_size(tensor))}" for tensor in largest]
    fix = "a smaller batch, shorter sequences, activation checkpointing, torch.autocast, no_grad() to predict"
    if facts.module is not None and not facts.module.training:
        fix = "a smaller batch or shorter sequences, a lower precision, torch.no_grad()"
    return Explanation(cause, fix, tuple(rows))


def alive() -> tuple[dict[str, int], list[Tensor]]:
    """The bytes of all tensors that Python holds, by what they are; and the largest. A storage is one."""
    seen: dict[int, tuple[Tensor, str]] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):  # isinstance would ask the object, which may be a proxy
            key = _pointer(thing)
            if key and (key not in seen or _kind(thing) == "parameters"):
                seen[key] = (thing, _kind(thing))
    gradients = {_pointer(t.grad) for t, kind in seen.values() if kind == "parameters" and t.grad is not None}
    totals = dict.fromkeys(("parameters", "gradients", "activations and other"), 0)
    for key, (tensor, kind) in seen.items():
        totals["gradients" if key in gradients else kind] += _size(tensor)
    largest = sorted((tensor for tensor, _ in seen.values()), key=_size, reverse=True)[:MOST]
    return totals, largest


def _kind(tensor: Tensor) -> str:
    return "parameters" if isinstance(tensor, torch.nn.Parameter) else "activations and other"


def _pointer(tensor: Any) -> int:
    return int(attempt(lambda: tensor.untyped_storage().data_ptr(), 0))


def _size(tensor: Tensor) -> int:
    return int(attempt(lambda: tensor.untyped_storage().nbytes(), 0))
