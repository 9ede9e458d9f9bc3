"""The ledger: every piece of memory that tensors got, from when to when, and for which module.

A weak reference to the storage tells when it is freed (measured: to the byte, on a training step of a GPT).
Memory that a kernel allocates and frees itself is not seen.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

from layerstep._torch.saved import key_of
from layerstep.calls.operations import user_frame
from layerstep.tensors.autograd_graph import size_of

__all__ = ["MemoryLedger", "Piece"]

WORTH = 0.9
"""The part of the last step's highest point from which a line is looked for."""
EVENTS = 500_000
"""The most events of one step, some 80 MB. Beyond it the peak is known, but not what was alive at it."""


@dataclass(slots=True)
class Piece:
    """A piece of memory: its size, its owner, and the part of the step that allocated it."""

    bytes: int
    path: str
    part: str
    kind: str = ""
    """parameters, buffers, gradients, optimizer state, inputs or saved; "": temporary."""


class _Reference(weakref.ref[Any]):
    """A weak reference that knows its piece."""

    __slots__ = ("key", "number")
    key: int
    number: int


@dataclass(slots=True)
class Top:
    """The highest point of a part of a step."""

    bytes: int = 0
    at: int = 0
    """After how many events."""
    path: str = ""
    part: str = ""
    place: tuple[CodeType, int] | None = None
    """The line of the program, as its code and the instruction there."""


@dataclass(slots=True)
class MemoryLedger:
    """The pieces by number. Those alive at the beginning of a step stay; the events are of one step."""

    live: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)
    tops: dict[bool, Top] = field(default_factory=lambda: {False: Top(), True: Top()})
    """The highest points outside and inside an optimizer's step."""
    parts: list[tuple[int, str]] = field(default_factory=list)
    """Where in the events another part of the step begins."""
    is_cut: bool = False
    worth: int = 0
    """A lower top is not the highest of the step, so we do not look for its line, which takes 0.7 µs."""
    _events: array[int] = field(default_factory=lambda: array("q"))
    _alive: dict[int, _Reference] = field(default_factory=dict)
    _at_begin: set[int] = field(default_factory=set)
    _next: int = 1

    def begin(self) -> None:
        """A step begins: forget what is freed."""
        alive = list(self._alive.values())  # as one list: what is freed meanwhile removes itself
        self._at_begin = {reference.number for reference in alive}
        self.pieces = {number: self.pieces[number] for number in self._at_begin}
        self._events = array("q")
        self.parts = []
        self.is_cut = False
        self.worth = int(WORTH * max(top.bytes for top in self.tops.values()))
        self.tops = {False: Top(self.live), True: Top()}

    def release(self) -> None:
        """A step is over: nothing is an input or saved any more."""
        for piece in self.pieces.values():
            if piece.kind in ("inputs", "saved"):
                piece.kind = ""

    def find(self, key: int) -> Piece | None:
        """The piece with this number of its memory, if it is known."""
        reference = self._alive.get(key)
        return self.pieces.get(reference.number) if reference is not None else None

    def knows(self, key: int) -> bool:
        return key in self._alive

    def add(self, tensor: Tensor, key: int, *, path: str, part: str) -> Piece | None:
        """New memory; None where it has no bytes."""
        size = size_of(tensor)
        return self.enter(tensor.untyped_storage(), key, size=size, path=path, part=part) if size else None

    def enter(
        self, storage: Any, key: int, *, size: int, path: str, part: str, frame: FrameType | None = None
    ) -> Piece:
        """New memory of some bytes, and the frame of the operation that asked for it."""
        number = self._next
        self._next += 1
        reference = _Reference(storage, self._freed)
        reference.key, reference.number = key, number
        self._alive[key] = reference
        piece = self.pieces[number] = Piece(size, path, part)
        if (not self.parts or self.parts[-1][1] != part) and part != "before":
            self.parts.append((len(self._events), part))
        self._note(number)
        self.live += size
        top = self.tops[part == "optimizer"]
        if self.live > top.bytes:
            top.bytes, top.at, top.path, top.part = self.live, len(self._events), path, part
            top.place = None
            if frame is not None and self.live >= self.worth:
                line = user_frame(frame)
                top.place = (line.f_code, line.f_lasti) if line is not None else None
        return piece

    def seed(self, tensors: Iterable[tuple[str, Tensor]], kind: str, part: str = "before") -> None:
        """Note what some memory is for. Memory from before the measuring becomes known by this."""
        for path, tensor in tensors:
            key = key_of(tensor)
            if not key:
                continue
            reference = self._alive.get(key)
            if reference is None:
                piece = self.add(tensor, key, path=path, part=part)
            else:
                piece = self.pieces.get(reference.number)
            if piece is not None and not piece.kind:
                piece.kind, piece.path = kind, path

    def _note(self, event: int) -> None:
        if len(self._events) < EVENTS:
            self._events.append(event)
        elif not self.is_cut:
            self.is_cut = True
            alive = {reference.number for reference in list(self._alive.values())}
            self.pieces = {number: piece for number, piece in self.pieces.items() if number in alive}

    def _freed(self, reference: Any) -> None:
        piece, key = self.pieces.get(reference.number), reference.key
        if self._alive.get(key) is reference:
            del self._alive[key]
        if piece is not None:
            self.live -= piece.bytes
            self._note(-reference.number)
            if self.is_cut:
                self.pieces.pop(reference.number, None)

    def alive_after(self, events: int) -> list[tuple[Piece, bool]]:
        """What was alive after so many events of this step, and whether it was alive at its beginning."""
        alive = set(self._at_begin)
        for event in self._events[:events]:
            (alive.add if event > 0 else alive.discard)(abs(event))
        there = self._at_begin
        return [(self.pieces[number], number in there) for number in sorted(alive) if number in self.pieces]

    def course(self) -> list[int]:
        """The bytes that were alive after each event of this step."""
        live = sum(self.pieces[number].bytes for number in self._at_begin if number in self.pieces)
        course = [live]
        for event in self._events:
            piece = self.pieces.get(abs(event))
            live += 0 if piece is None else piece.bytes if event > 0 else -piece.bytes
            course.append(live)
        return course

    def close(self) -> None:
        """Drop every reference."""
        self._alive.clear()
        self.pieces.clear()
        self._at_begin.clear()
