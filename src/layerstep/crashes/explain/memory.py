"""Out of memory: what was asked for, and what is alive."""

from __future__ import annotations

import gc
import re
from functools import partial

import torch
from torch import Tensor, nn

from layerstep._torch.saved import key_of
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts
from layerstep.memory.holders import holder_of
from layerstep.memory.now import live_tensors
from layerstep.memory.owned import state_of
from layerstep.tensors.autograd_graph import size_of, walk
from layerstep.tensors.format import human_bytes
from layerstep.tensors.shapes import attempt, shape_line

__all__ = ["alive"]

MOST = 5
NODES = 50_000


@says(
    r"out of memory",
    r"(?:not enough|can't allocate) memory: you tried to allocate (\d+) bytes",
    r"CUBLAS_STATUS_ALLOC_FAILED",
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
    for tensor, holder in largest:
        rows.append(f"alive: {shape_line(tensor)}, {human_bytes(size_of(tensor))}, {holder}")
    if graph := _held_by_graphs():
        rows.append(graph)
    fix = "a smaller batch, shorter sequences, activation checkpointing, torch.autocast, no_grad() to predict"
    if facts.module is not None and not facts.module.training:
        fix = "a smaller batch or shorter sequences, a lower precision, torch.no_grad()"
    return Explanation(cause, fix, tuple(rows))


def alive() -> tuple[dict[str, int], list[tuple[Tensor, str]]]:
    """The bytes of all tensors that Python holds, by what they are; the largest, and whose each is.

    A storage is one.
    """
    seen: dict[int, tuple[Tensor, str]] = {}
    state: set[int] = set()
    homes: dict[int, str] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask the object, which may be a proxy
        if issubclass(kind, Tensor):
            key = key_of(thing)
            if key and (key not in seen or _kind(thing) == "parameters"):
                seen[key] = (thing, _kind(thing))
        elif issubclass(kind, torch.optim.Optimizer):
            state |= {key_of(tensor) for _, tensor in attempt(partial(_states, thing), [])}
        elif issubclass(kind, nn.Module):
            for name, parameter in thing.__dict__.get("_parameters", {}).items():
                homes[key_of(parameter)] = f"{kind.__name__}.{name}"
    gradients = {key_of(t.grad) for t, kind in seen.values() if kind == "parameters" and t.grad is not None}
    totals = dict.fromkeys(("parameters", "gradients", "optimizer state", "activations and other"), 0)
    whose: dict[int, str] = {}
    for key, (tensor, word) in seen.items():
        word = "gradients" if key in gradients else "optimizer state" if key in state else word
        totals[word] += size_of(tensor)
        whose[key] = homes.get(key, word if word in ("gradients", "optimizer state") else "")
    largest = sorted((tensor for tensor, _ in seen.values()), key=size_of, reverse=True)[:MOST]
    return totals, [(t, whose[key_of(t)] or f"held by {holder_of(t)}") for t in largest]


def _states(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
    return list(state_of(optimizer))


def _held_by_graphs() -> str:
    """What autograd keeps for backward passes that have not run."""
    nodes = [t.grad_fn for t in live_tensors() if attempt(lambda t=t: t.grad_fn, None) is not None]  # type: ignore[misc]
    graph = walk(nodes, most=NODES)
    if not graph.bytes:
        return ""
    return f"kept for the backward: {human_bytes(graph.bytes)} in {graph.nodes:,} nodes, parameters included"


def _kind(tensor: Tensor) -> str:
    return "parameters" if isinstance(tensor, torch.nn.Parameter) else "activations and other"
