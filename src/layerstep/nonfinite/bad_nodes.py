"""Blame in the backward: the autograd node that made the first gradient which is not finite.

Nodes are watched as they run; a ledger of the forward says which line made which node, because autograd
numbers its nodes and a function's nodes lie between its beginning and its end.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from layerstep._torch import autograd_count, node_number
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.tensors import is_tensor, size_of
from layerstep.calls.operations import Place, name_of, place_of
from layerstep.nonfinite.kernel_mode import called_as
from layerstep.nonfinite.kernel_trace import module_at
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import count_bad, is_finite

__all__ = ["BadNode", "Entry", "Ledger", "Nodes", "nodes_between"]

MOST_ENTRIES = 500
"""Of a loss function; what is noted keeps its tensors alive until the backward begins."""
MOST_BYTES = 256 << 20
"""Of results that are held so; of what comes after that only the line is kept."""


Saved = tuple[tuple[str, Tensor], ...]


@dataclass(slots=True, eq=False)
class Entry:
    """One function that the program called, and the numbers of the nodes that it made."""

    start: int
    end: int
    name: str
    place: Place
    module: nn.Module | None
    func: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: Any = None


class Ledger:
    """What was called, in its order: functions, or kernels with their operands and results."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._last = autograd_count()
        self._bytes = 0

    @property
    def is_whole(self) -> bool:
        """Were all values held?"""
        return self._bytes <= MOST_BYTES and len(self.entries) < MOST_ENTRIES

    def around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, and note it."""
        start = autograd_count()
        result = func(*args, **kwargs)
        frame = sys._getframe(1)
        entry = Entry(start, autograd_count(), name_of(func), place_of(frame), module_at(frame))
        self.entries.append(entry)
        return result

    def beside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a kernel, and note it; its node has been made just before, above the kernel."""
        result = run_kernel(func, args, kwargs)
        if len(self.entries) < MOST_ENTRIES:
            start, self._last = self._last, autograd_count()
            frame = sys._getframe(1)
            entry = Entry(start, self._last, called_as(func, frame), place_of(frame), None)
            self._bytes += sum(map(size_of, tensors_of(result)))
            if self._bytes <= MOST_BYTES:
                entry.func, entry.args, entry.kwargs, entry.result = func, args, kwargs, result
            self.entries.append(entry)
        return result

    def entry_of(self, number: int) -> Entry | None:
        """The function that made the node with this number."""
        around = [entry for entry in self.entries if entry.start <= number < entry.end]
        return min(around, key=lambda entry: entry.end - entry.start, default=None)

    def culprit(self) -> Entry | None:
        """The first function whose result is not finite though its operands are."""
        for entry in self.entries:
            made = [t for t in tensors_of(entry.result) if not is_finite(t)]
            if made and all(map(is_finite, tensors_of((entry.args, entry.kwargs)))):
                return entry
            if made and any(count_bad(t).nan for t in made):
                given = [count_bad(t) for t in tensors_of((entry.args, entry.kwargs))]
                if not any(bad.nan for bad in given):
                    return entry
        return None


@dataclass(slots=True, eq=False)
class BadNode:
    """A node that handed on, or made, a gradient that is not finite."""

    name: str
    number: int
    made: bool
    """It got none and gave one."""
    grad_out: tuple[Any, ...] = ()
    grad_in: tuple[Any, ...] = ()
    saved: Saved = ()
    bad_edges: tuple[int, ...] = ()
    traceback: tuple[str, ...] = ()


class Nodes:
    """Watches the nodes of a graph as the backward pass runs them.

    With `check` at once; else it only holds what passed, which costs nothing, until it is asked.
    """

    def __init__(self, *, check: bool) -> None:
        self._check = check
        self._seen: set[Any] = set()
        self._handles: list[Any] = []
        self._held: list[tuple[Any, tuple[Any, ...], tuple[Any, ...], Saved]] = []
        self.blamed: list[BadNode] = []

    def watch(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if node not in self._seen and getattr(node, "variable", None) is None:
                self._seen.add(node)
                self._handles.append(node.register_hook(partial(self._ran, node)))

    def let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()
        self._held.clear()

    def drop(self) -> None:
        """Hold nothing of what has passed so far."""
        self._held.clear()

    def look(self) -> None:
        """Check what was held."""
        for node, grad_in, grad_out, saved in self._held:
            self._examine(node, grad_in, grad_out, saved)
        self._held.clear()

    def producer(self) -> BadNode | None:
        """The node that made the first bad gradient: the earliest that got none."""
        return next((each for each in self.blamed if each.made), None)

    def _ran(self, node: Any, grad_in: tuple[Any, ...], grad_out: tuple[Any, ...]) -> None:
        if self._check:
            self._examine(node, grad_in, grad_out, None)
        else:
            self._held.append((node, grad_in, grad_out, _saved(node)))  # it lets go of it after this

    def _examine(
        self, node: Any, grad_in: tuple[Any, ...], grad_out: tuple[Any, ...], saved: Saved | None
    ) -> None:
        edges = tuple(i for i, each in enumerate(grad_in) if is_tensor(each) and not is_finite(each))
        if not edges:
            return
        made = all(is_finite(each) for each in grad_out if is_tensor(each))
        blamed = BadNode(node.name(), node_number(node), made, bad_edges=edges)
        if made:
            blamed.grad_in, blamed.grad_out = grad_in, grad_out
            blamed.saved = saved if saved is not None else _saved(node)
            blamed.traceback = tuple(getattr(node, "metadata", {}).get("traceback_", ()))
        self.blamed.append(blamed)


def nodes_between(tops: Iterable[Any], bottoms: Container[int], *, most: int) -> list[Any] | None:
    """The nodes from some down to, and without, those of these numbers; None if more than `most`."""
    waiting = [node for node in tops if node is not None]
    found: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        is_leaf = getattr(node, "variable", None) is not None  # its number is the largest there is
        if node in found or (not is_leaf and node_number(node) in bottoms):
            continue
        if len(found) >= most:
            return None
        found[node] = None
        waiting += [below for below, _ in node.next_functions if below is not None]
    return list(found)


_saved_names: dict[type, list[str]] = {}


def _saved(node: Any) -> Saved:
    """What a node kept of the forward: the operands that explain its derivative."""
    names = _saved_names.get(type(node))
    if names is None:
        names = _saved_names[type(node)] = [name for name in dir(node) if name.startswith("_saved_")]
    found = []
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:  # let go of already
            continue
        if is_tensor(value):
            found.append((name.removeprefix("_saved_"), value))
    return tuple(found)
