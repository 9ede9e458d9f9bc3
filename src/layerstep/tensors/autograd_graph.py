"""The graph behind tensors: how many nodes it has, and the memory that they keep alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from layerstep._torch import node_number
from layerstep._torch.saved import is_opaque, is_written_view, key_of, saved_by
from layerstep._torch.tensors import is_tensor
from layerstep.tensors.containers import tensors_of

__all__ = ["Graph", "Held", "inner_tensors", "nodes_behind", "size_of", "walk"]

NODES = 200_000
"""The most nodes to visit in a graph."""
DEPTH = 6
"""How deep to look into containers: a model may be called with a dictionary of lists of tuples."""


@dataclass(frozen=True, slots=True)
class Held:
    """A piece of memory, and the number of the first node that keeps it."""

    key: int
    bytes: int
    node: int


@dataclass(slots=True)
class Graph:
    """The graph behind some tensors."""

    nodes: int = 0
    held: list[Held] = field(default_factory=list)
    """Each piece of memory once, in the order in which the nodes were made."""
    opaque: Counter[str] = field(default_factory=Counter)
    """Nodes that do not show what they hold, by name."""
    is_cut: bool = False

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.held)


def walk(
    roots: Iterable[Any],
    *,
    most: int = NODES,
    met: Callable[[Tensor, int], None] | None = None,
    hidden: Callable[[int], Iterable[tuple[int, int]] | None] = lambda number: None,
) -> Graph:
    """Go through the graph from its last nodes on. Saved parameters count among what it holds.

    `met` gets each tensor that is held and the number of its memory. `hidden` tells what an opaque node
    holds: memory and its bytes, or None.
    """
    seen, is_cut = nodes_behind(roots, most=most)
    graph, known = Graph(len(seen), is_cut=is_cut), set[int]()
    for number, _, node in sorted((node_number(node), id(node), node) for node in seen):
        for key, size in _opaque(node, number, graph, hidden) if is_opaque(node) else ():
            if not key or key not in known:
                known.add(key)
                graph.held.append(Held(key, size, number))
        for tensor in inner_tensors(tuple(saved_by(node))):
            key = key_of(tensor)
            if key and key not in known:
                known.add(key)
                graph.held.append(Held(key, size_of(tensor), number))
                if met is not None:
                    met(tensor, key)
    return graph


def nodes_behind(roots: Iterable[Any], *, most: int = NODES) -> tuple[set[Any], bool]:
    """The nodes behind these, at most `most`, and whether there are more."""
    seen = set[Any]()
    waiting = [node for node in roots if node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if len(seen) >= most:
            return seen, True
        seen.add(node)
        waiting += [below for below, _ in node.next_functions if below is not None]
    return seen, False


def _opaque(
    node: Any, number: int, graph: Graph, hidden: Callable[[int], Iterable[tuple[int, int]] | None]
) -> Iterable[tuple[int, int]]:
    """What is known about an opaque node; if nothing, count it as opaque."""
    inside = hidden(number) if is_written_view(node) else None
    if inside is None:
        graph.opaque[node.name().rpartition("::")[2]] += 1
    return inside or ()


def inner_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value that have memory; for a sparse one, its parts."""
    for tensor in tensors_of(value, DEPTH):
        if not key_of(tensor) and _has_parts(tensor):
            yield from _parts(tensor)
        else:
            yield tensor


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    for name in ("_indices", "_values", "crow_indices", "col_indices", "values"):
        try:
            part = getattr(tensor, name)()
        except Exception:  # no such part, or a class that refuses every question
            continue
        if is_tensor(part) and key_of(part):
            yield part


def size_of(tensor: Tensor) -> int:
    """The bytes of its whole storage, of which it may show a part; 0 where there is none."""
    try:
        return 0 if tensor.is_meta else int(tensor.untyped_storage().nbytes())
    except Exception:  # lazy, freed, or a class that refuses every question
        return 0


def _has_parts(tensor: Tensor) -> bool:
    """Does it keep its memory in other tensors? If its class refuses every question: no."""
    try:
        return tensor.layout is not None
    except Exception:
        return False
