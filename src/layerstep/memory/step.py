"""A measured step: the most that was alive, for what and for which module, and what autograd held."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from layerstep.memory.ledger import MemoryLedger, Piece, Top
from layerstep.memory.places import OpOwners
from layerstep.tensors.autograd_graph import Graph

__all__ = ["KINDS", "SCALING", "MeasuredStep", "Peak", "Savings", "close_step", "sum_savings"]

KINDS = ("parameters", "buffers", "gradients", "optimizer state", "inputs", "saved", "temporary", "other")
SCALING = ("inputs", "saved", "temporary")
"""What grows with the batch."""
POINTS = 240
"""The most points of a timeline: each is the highest of several events."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest point of a step, or of its optimizer steps."""

    bytes: int = 0
    path: str = ""
    part: str = ""
    kinds: dict[str, int] = field(default_factory=dict)
    temporary: dict[str, int] = field(default_factory=dict)
    """What was neither kept nor saved, by the module that made it."""
    line: str = ""
    """`train.py:41`, where it is known: outside a backward pass."""


@dataclass(frozen=True, slots=True)
class Savings:
    """What autograd holds: activations, listed under the module whose node saved them first."""

    by_path: dict[str, int] = field(default_factory=dict)
    apart: dict[str, int] = field(default_factory=dict)
    """Saved parameters, buffers and inputs, which are there anyway."""
    nodes: int = 0
    opaque: dict[str, int] = field(default_factory=dict)
    """Nodes that do not show what they hold."""
    is_cut: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.by_path.values())


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One training step, or one forward where nothing trains."""

    label: str
    batch: int | None
    peak: Peak
    in_optimizer: Peak
    saved: Savings
    after: int
    """Alive when it ended."""
    course: tuple[float, ...] = ()
    parts: tuple[tuple[float, str], ...] = ()
    """Where in the course a part begins, from 0 to 1."""
    is_cut: bool = False
    is_compiled: bool = False
    """Is a model compiled? What its code allocates and frees inside was not seen."""
    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    """What models and optimizers kept at its end, by kind and module. They may be gone by now."""
    forwards: int = 1
    """How many forwards it had: micro-batches, or several models."""

    @property
    def highest(self) -> Peak:
        return max(self.peak, self.in_optimizer, key=lambda peak: peak.bytes)


def _peak(ledger: MemoryLedger, top: Top) -> Peak:
    """What was alive at the top."""
    if not top.bytes or ledger.is_cut:
        return Peak(top.bytes, top.path, top.part, line=_line(top))
    kinds, temporary = Counter[str](), Counter[str]()
    for piece, was_there in ledger.alive_after(top.at):
        kinds[piece.kind or ("other" if was_there else "temporary")] += piece.bytes
        if not (piece.kind or was_there):
            temporary[piece.path] += piece.bytes
    return Peak(top.bytes, top.path, top.part, dict(kinds), dict(temporary), _line(top))


def _line(top: Top) -> str:
    if top.place is None:
        return ""
    code, instruction = top.place
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return f"{os.path.basename(code.co_filename)}:{next(lines, None) or code.co_firstlineno}"


def sum_savings(graph: Graph, ledger: MemoryLedger, places: OpOwners) -> Savings:
    """Assign what a graph holds to modules, and mark it in the ledger."""
    by_path, apart = Counter[str](), Counter[str]()
    for held in graph.held:
        piece: Piece | None = ledger.find(held.key)
        if piece is not None and piece.kind in ("parameters", "buffers", "inputs"):
            apart[piece.kind] += held.bytes
            continue
        by_path[places.owner(held.node)] += held.bytes
        if piece is not None and not piece.kind:
            piece.kind = "saved"
    return Savings(dict(by_path), dict(apart), graph.nodes, dict(graph.opaque), graph.is_cut)


def _shorten(course: list[int]) -> tuple[float, ...]:
    """At most `POINTS` values, each the highest of its neighbours: a peak is never lost."""
    size = max(1, -(-len(course) // POINTS))
    return tuple(float(max(course[at : at + size])) for at in range(0, len(course), size))


def close_step(ledger: MemoryLedger, saved: Savings, *, label: str, batch: int | None) -> MeasuredStep:
    """Sum up a step that has ended."""
    course = [] if ledger.is_cut else ledger.course()
    parts = tuple((at / max(1, len(course)), part) for at, part in ledger.parts)
    return MeasuredStep(
        label,
        batch,
        _peak(ledger, ledger.tops[False]),
        _peak(ledger, ledger.tops[True]),
        saved,
        ledger.live,
        _shorten(course) if course else (),
        parts,
        ledger.is_cut,
    )
