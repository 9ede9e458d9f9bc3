"""Repeated blocks: neighbours that do the same with the same are drawn once.

The operations and calls of the later ones stand for those of the first, at the same place in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from layerstep.graph.model_graph import ModelGraph, ModuleCall, TensorKind

__all__ = ["Folds", "folds_of"]

FEWEST = 3
"""So many equal neighbours are drawn once, as in `tree`."""


@dataclass(slots=True)
class Folds:
    """What stands for what."""

    calls: dict[int, int] = field(default_factory=dict)
    operations: dict[int, int] = field(default_factory=dict)
    runs: dict[int, list[ModuleCall]] = field(default_factory=dict)
    """The members of each run, by the index of its first call."""

    def call(self, index: int) -> int:
        return _last(self.calls, index)

    def operation(self, index: int) -> int:
        return _last(self.operations, index)


def _last(table: dict[int, int], index: int) -> int:
    while index in table:
        index = table[index]
    return index


def folds_of(graph: ModelGraph, children: dict[int, list[ModuleCall]], roots: list[int]) -> Folds:
    """The folds among the children of these calls, which are drawn open."""
    finder = _Finder(graph)
    folds = Folds()
    for root in roots:
        siblings, at = children.get(root, []), 0
        while at < len(siblings):
            run = finder.run_at(siblings, at)
            if len(run) >= FEWEST:
                _fold(folds, run, finder, siblings, at)
            at += len(run)
    return folds


def _fold(folds: Folds, run: list[ModuleCall], finder: _Finder, siblings: list[ModuleCall], at: int) -> None:
    first = run[0]
    folds.runs[first.index] = run
    pattern = finder.between(run[0], run[1])
    for member in run[1:]:
        for offset in range(finder.size_of(member)):
            folds.calls[member.index + offset] = first.index + offset
        for offset in range(member.end - member.start):
            folds.operations[member.start + offset] = first.start + offset
    after = siblings[at + len(run)] if at + len(run) < len(siblings) else None
    for one, other in zip(run[1:], [*run[2:], after], strict=True):
        rest = finder.between(one, other)[: len(pattern)]
        if finder.names(rest) == finder.names(pattern):
            folds.operations.update(zip(rest, pattern, strict=True))


class _Finder:
    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self._sizes = _sizes(graph)
        self._looks: dict[int, int] = {}
        self._readers: dict[int, set[int]] = {}
        for operation in graph.operations:
            for flow in operation.reads:
                for source in flow.sources:
                    self._readers.setdefault(source, set()).add(operation.index)

    def size_of(self, call: ModuleCall) -> int:
        """How many calls it is, with those in it."""
        return self._sizes[call.index]

    def run_at(self, siblings: list[ModuleCall], at: int) -> list[ModuleCall]:
        """The longest run of equal neighbours from here; the call alone if there is none."""
        run = [siblings[at]]
        for call in siblings[at + 1 :]:
            if self._look(call) != self._look(run[0]) or not self._goes_on(run, call):
                break
            run.append(call)
        while len(run) >= FEWEST and not self._ends_alike(run):
            run.pop()
        return run if len(run) >= FEWEST else run[:1]

    def between(self, one: ModuleCall, other: ModuleCall | None) -> list[int]:
        """The operations after a call and before the next one."""
        end = other.start if other is not None else len(self._graph.operations)
        parent = one.parent
        found = []
        for index in range(one.end, end):
            if self._graph.operations[index].call != parent:
                break
            found.append(index)
        return found

    def names(self, operations: list[int]) -> list[str]:
        return [self._graph.operations[index].name for index in operations]

    def _goes_on(self, run: list[ModuleCall], call: ModuleCall) -> bool:
        """Does it read of the run at most the one before, and else the same as the others?"""
        last = run[-1]
        if self.names(self.between(last, call)) != self.names(self.between(run[0], [*run, call][1])):
            return False
        outside, inside = self._sources(call, run[0].start)
        if any(source < last.start for source in inside) or not self._is_chain(run, call):
            return False
        return len(run) < 2 or outside == self._sources(last, run[0].start)[0]

    def _is_chain(self, run: list[ModuleCall], call: ModuleCall) -> bool:
        """Do the operations before a call read of the run no more than the last, and what lies before it?"""
        least = run[-2].end if len(run) > 1 else run[-1].start
        between = (self._graph.operations[index] for index in self.between(run[-1], call))
        found = (source for operation in between for flow in operation.reads for source in flow.sources)
        return all(source >= least or source < run[0].start for source in found)

    def _sources(self, call: ModuleCall, begin: int) -> tuple[set[int], set[int]]:
        """What a call reads from before the run, and from within it."""
        flows = list(call.inputs)
        for index in range(call.start, call.end):
            flows += self._graph.operations[index].reads
        found = {source for flow in flows for source in flow.sources if source < call.start}
        return {each for each in found if each < begin}, {each for each in found if each >= begin}

    def _ends_alike(self, run: list[ModuleCall]) -> bool:
        """Do all but the last go to the same places after the run?"""
        places = [self._readers_after(call, run[-1].end) for call in run[:-1]]
        return all(each == places[0] for each in places[1:])

    def _readers_after(self, call: ModuleCall, end: int) -> set[int]:
        found = (self._readers.get(index, ()) for index in range(call.start, call.end))
        return {reader for readers in found for reader in readers if reader >= end}

    def _look(self, call: ModuleCall) -> int:
        """A number that calls share which do the same: classes, shapes, functions, in this order."""
        if call.index not in self._looks:
            self._looks[call.index] = hash(tuple(self._words(call)))
        return self._looks[call.index]

    def _words(self, call: ModuleCall) -> Iterator[object]:
        yield _alike(call.outputs), call.parameters, call.parent
        for part in self._graph.calls[call.index : call.index + self.size_of(call)]:
            yield part.kind, part.parent - call.index if part is not call else 0, part.start - call.start
            yield part.parameters
        for operation in self._graph.operations[call.start : call.end]:
            yield operation.name, operation.role, operation.call - call.index, _alike(operation.outputs)


def _alike(kinds: tuple[TensorKind, ...]) -> tuple[object, ...]:
    """What equal blocks share: the first size may differ, as it does for experts that get some rows each."""
    return tuple((kind.dtype, kind.device, len(kind.shape), kind.shape[1:]) for kind in kinds)


def _sizes(graph: ModelGraph) -> list[int]:
    sizes = [1] * len(graph.calls)
    for call in reversed(graph.calls):
        if call.parent >= 0:
            sizes[call.parent] += sizes[call.index]
    return sizes
