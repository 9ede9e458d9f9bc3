"""Graphs that outlive their step: how many, what holds them, and which line makes that grow.

A mark is left in the metadata of the node that made a loss or an output. It lives as long as the node, so no
search through the objects of the process is needed to count the graphs that are alive: 2 µs a step.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerstep._torch.guards import functions_off
from layerstep.memory.holders import holder_of
from layerstep.memory.leak_lines import growing_line

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["LiveGraphs"]

KEPT = 64
"""Steps whose graphs are followed."""
EACH = 2
"""Tensors of each step that are followed: an output and a loss."""
EVERY = 8
"""They are counted in one step of so many."""
MANY = 24
"""Live graphs of different steps at which their holder is looked for; that takes some 100 ms, once."""
_KEY = "layerstep"


class _Mark:
    """Left in a node: alive as long as the node."""

    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


class LiveGraphs:
    """Follows the graphs behind the losses and the outputs of models."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._marks: deque[weakref.ref[_Mark]] = deque(maxlen=EACH * KEPT)
        self._step = self._in_step = self._count = 0
        self.held_by: tuple[str, str, int] | None = None

    def follow(self, tensor: Tensor, step: int) -> None:
        """Leave a mark in the node that made a tensor."""
        with functions_off():
            node: Any = tensor.grad_fn
        self._in_step = self._in_step + 1 if step == self._step else 1
        self._step = step
        if node is not None and self._in_step <= EACH:
            mark = _Mark(step)
            node.metadata[_KEY] = mark
            self._marks.append(weakref.ref(mark))

    def count(self, step: int) -> int:
        """How many steps before the last one have left graphs that are alive."""
        if step % EVERY:
            return self._count
        alive = {mark.step for reference in self._marks if (mark := reference()) is not None}
        self._count = sum(each < step - 1 for each in alive)
        return self._count

    def look(self, step: int) -> int:
        """How many are alive after a step; what holds them is looked for once they are many."""
        alive = self.count(step)
        if alive >= MANY and self.held_by is None:
            self.look_for_holder()
        return alive

    def look_for_holder(self) -> None:
        """Name what holds them, once."""
        old = self._step - 2
        kept = [tensor for tensor in _tensors() if _is_marked(tensor.grad_fn, old)]
        kept = kept or [tensor for tensor in _tensors() if _leads_to_mark(tensor.grad_fn, old)]
        for tensor in kept[:2]:
            holder = holder_of(tensor)
            line = growing_line(holder, self._session.run.models)
            self.held_by = (holder, line.file, line.number) if line is not None else (holder, "", 0)
            if line is not None:
                return
        self.held_by = self.held_by or ("an object that was not found", "", 0)


def _tensors() -> list[Tensor]:
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor) and each.grad_fn is not None]


def _is_marked(node: Any, last: int) -> bool:
    """Was a node marked in this step or before it?"""
    mark = node.metadata.get(_KEY)
    return mark is not None and mark.step <= last


def _leads_to_mark(node: Any, last: int) -> bool:
    """Is a marked node close below? `total = total + loss` holds the node of each loss."""
    waiting = [(node, 0)]
    while waiting:
        each, depth = waiting.pop()
        if each is None or depth > 6:
            continue
        if _is_marked(each, last):
            return True
        waiting += [(below, depth + 1) for below, _ in each.next_functions]
    return False
