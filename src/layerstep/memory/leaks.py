"""Leaks: tensors that pile up from census to census, what holds them, and what they hold."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from layerstep._torch import node_number
from layerstep._torch.saved import key_of
from layerstep.memory.census import Census, Count
from layerstep.memory.holders import holder_of
from layerstep.memory.leak_lines import Line, growing_line
from layerstep.memory.owned import parameters_of
from layerstep.module_paths.models import Models
from layerstep.tensors.autograd_graph import nodes_behind, size_of, walk
from layerstep.tensors.shapes import shape_line

__all__ = ["Leak", "find_leaks", "growth"]

SECONDS = 5.0
"""Seconds after which the search for holders ends: each one goes through every object of the process."""
GROUPS = 12
FEWEST = 3
"""So many steps must have left something behind; a program may keep fewer on purpose."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Tensors of one kind that pile up."""

    first: str
    """The tensor line of one of them."""
    tensors: int
    bytes: int
    steps: int
    """In how many different steps they were born."""
    holder: str
    line: Line | None
    nodes: int = 0
    """The autograd nodes in the graphs behind all of them."""
    graph_bytes: int = 0
    """What those nodes hold beyond parameters."""
    inside: int = 0
    """Tensors of earlier steps that are alive only in these graphs."""

    @property
    def total(self) -> int:
        return max(self.bytes, self.graph_bytes)


def growth(counts: Sequence[Count]) -> tuple[float, float] | None:
    """The growth in tensors and bytes per step over the later half; None without growth or enough steps."""
    if len(counts) < FEWEST:
        return None
    later = list(counts)[len(counts) // 2 - 1 :] if len(counts) > FEWEST else list(counts)[-FEWEST:]
    steps = later[-1].step - later[0].step
    if steps <= 0:
        return None
    tensors = (later[-1].tensors - later[0].tensors) / steps
    size = (later[-1].bytes - later[0].bytes) / steps
    rises = all(a.bytes <= b.bytes for a, b in itertools.pairwise(later))
    return (tensors, size) if rises and (size > 0 or tensors > 0) else None


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor that is kept: the graph behind it, and the steps that made what the graph keeps."""

    tensor: Tensor
    born: frozenset[int]
    nodes: int = 0
    bytes: int = 0
    inside: int = 0


def find_leaks(census: Census, models: Models) -> list[Leak]:
    """What piles up, the largest first."""
    groups: dict[Any, list[_Found]] = {}
    for found in _kept(census, models):
        groups.setdefault(_kind(found.tensor), []).append(found)
    leaks, end = list[Leak](), time.monotonic() + SECONDS
    for group in sorted(groups.values(), key=lambda group: -sum(size_of(f.tensor) + f.bytes for f in group)):
        steps = frozenset[int]().union(*(found.born for found in group))
        if len(steps) >= FEWEST and len(leaks) < GROUPS:
            leaks.append(_leak(group, len(steps), models, search=time.monotonic() < end))
    return leaks


def _kept(census: Census, models: Models) -> Iterator[_Found]:
    """First the tensors whose graphs keep earlier ones alive, the newest first; then the others."""
    births = {id(tensor): (tensor, birth) for tensor, birth in census.survivors()}
    owned = {key_of(tensor) for _, tensor in parameters_of(models)}
    covered, held = set[Any](), set[int]()
    with_graph = [tensor for tensor in census.others() if tensor.grad_fn is not None]
    for tensor in sorted(with_graph, key=lambda t: -node_number(t.grad_fn)):
        if tensor.grad_fn in covered:
            continue
        nodes, _ = nodes_behind([tensor.grad_fn])
        covered |= nodes
        graph = walk([tensor.grad_fn])
        held |= {piece.key for piece in graph.held}
        inside = [birth for t, birth in births.values() if t.grad_fn is not None and t.grad_fn in nodes]
        if inside:
            size = sum(piece.bytes for piece in graph.held if piece.key not in owned)
            yield _Found(tensor, frozenset(inside), graph.nodes, size, len(inside))
    for tensor, birth in births.values():
        if tensor.grad_fn is None and key_of(tensor) not in held:
            yield _Found(tensor, frozenset({birth}))


def _leak(group: list[_Found], steps: int, models: Models, *, search: bool) -> Leak:
    first = group[0].tensor
    holder = holder_of(first) if search else "not searched for: it takes too long"
    if holder.startswith("autograd or C++") and len(group) > 1:
        holder = holder_of(group[-1].tensor)
    sizes = {key_of(found.tensor): size_of(found.tensor) for found in group}
    return Leak(
        shape_line(first),
        len(group),
        sum(sizes.values()),
        steps,
        re.sub(r"\[\d+\]", "[…]", holder) if len(group) > 1 else holder,
        growing_line(holder, models),
        sum(found.nodes for found in group),
        sum(found.bytes for found in group),
        sum(found.inside for found in group),
    )


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """What tensors that pile up have in common; a cache's entries may be of different lengths."""
    return tensor.dtype, tensor.dim(), type(tensor.grad_fn).__name__
