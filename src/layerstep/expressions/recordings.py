"""Recordings: what points have kept of layers over the forwards, in a ring that is bounded in bytes."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from layerstep.errors import UnknownPath
from layerstep.tensors.quick_look import QuickLook
from layerstep.tensors.summary import Summary, summary_of

__all__ = ["Recorded", "Recordings"]

Facts = Sequence[tuple[str, Summary | QuickLook]]
"""What was measured of each tensor of an output, by its place in it."""
FACTS_BYTES = 1_500
"""What one entry without tensors takes, measured with the statistics of one tensor."""


class Recorded:
    """One call of one module: when, what was measured, and on request a copy of its output."""

    __slots__ = ("_facts", "alive", "forward", "nbytes", "path", "value")

    def __init__(
        self,
        path: str,
        forward: int,
        facts: Facts | QuickLook,
        *,
        value: Any = None,
        nbytes: int = 0,
        alive: Sequence[weakref.ref[torch.Tensor]] = (),
    ) -> None:
        self.path = path
        self.forward = forward
        self._facts = facts
        self.value = value
        self.nbytes = nbytes
        self.alive = alive
        """The tensors of the output itself: whether the run still holds them, a later look tells."""

    @property
    def facts(self) -> tuple[tuple[str, Summary], ...]:
        """What was measured of each tensor, by its place in the output. Summaries are made when asked for."""
        if isinstance(self._facts, QuickLook):
            self._facts = (("", self._facts),)
        self._facts = tuple(
            (place, summary_of(each) if isinstance(each, QuickLook) else each) for place, each in self._facts
        )
        return self._facts

    def is_of(self, other: Recorded) -> bool:
        """Is this the same call?"""
        same = len(self.alive) == len(other.alive) > 0 and self.forward == other.forward
        return same and all(mine() is theirs() for mine, theirs in zip(self.alive, other.alive, strict=True))


class Recordings:
    """Entries in the order of time, the oldest dropped first: copies of tensors before measurements."""

    def __init__(self, *, most_tensors: int, budget: int) -> None:
        self.most_tensors = most_tensors
        self.budget = budget
        self.listeners: list[Callable[[Recorded], None]] = []
        """Told of each entry that is added."""
        self.dropped = 0
        """How many entries the ring has dropped."""
        self._entries: deque[Recorded] = deque()
        self._with_value: deque[Recorded] = deque()
        self._by_path: dict[str, deque[Recorded]] = {}
        self._value_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._value_bytes + len(self._entries) * FACTS_BYTES

    @property
    def paths(self) -> list[str]:
        return list(self._by_path)

    def add(self, entry: Recorded) -> None:
        """Keep an entry; of a call that another point has recorded already, only what that lacks."""
        last = self._by_path.get(entry.path)
        if last is None:
            last = self._by_path[entry.path] = deque()
        elif last[-1].forward == entry.forward and last[-1].is_of(entry):
            if last[-1].value is not None or entry.value is None:
                return
            self._entries.remove(last[-1])
            last.pop()
        self._entries.append(entry)
        last.append(entry)
        if entry.value is not None:
            self._with_value.append(entry)
            self._value_bytes += entry.nbytes
            while len(self._with_value) > self.most_tensors or self._value_bytes > self.budget:
                self._drop_value(self._with_value.popleft())
        while self.nbytes > self.budget and len(self._entries) > 1:
            self._drop_oldest()
        for heard in self.listeners:
            heard(entry)

    def _drop_value(self, entry: Recorded) -> None:
        self._value_bytes -= entry.nbytes
        entry.value = None

    def _drop_oldest(self) -> None:
        entry = self._entries.popleft()
        self.dropped += 1
        if entry.value is not None:
            self._with_value.popleft()
            self._drop_value(entry)
        of_path = self._by_path[entry.path]
        of_path.popleft()
        if not of_path:
            del self._by_path[entry.path]

    def of(self, path: str) -> list[Recorded]:
        """The entries of a path, the oldest first."""
        return list(self._by_path.get(path, ()))

    def everything(self) -> list[Recorded]:
        return list(self._entries)

    def value_before(self, path: str, *, forward: int, back: int) -> Any:
        """The output of a module as copied `back` recorded forwards before this one."""
        earlier = {entry.forward: entry for entry in self.of(path) if entry.forward < forward}
        if not earlier:
            raise UnknownPath(
                f"nothing of {path} is recorded from an earlier forward", f"`record {path} --tensors` first"
            )
        if back > len(earlier):
            raise UnknownPath(
                f"{path}@-{back}: only {len(earlier)} earlier forwards are recorded",
                f"{path}@-{len(earlier)}",
            )
        entry = earlier[sorted(earlier)[-back]]
        if entry.value is None:
            raise UnknownPath(
                f"of {path} in forward {entry.forward} only statistics are recorded",
                f"`record {path} --tensors` keeps tensors, up to `config track_bytes`",
            )
        return entry.value

    def clear(self) -> None:
        for store in (self._entries, self._with_value, self._by_path):
            store.clear()
        self._value_bytes = self.dropped = 0
