"""What the nodes inside a CopySlices hold, noted as their operation runs.

The nodes themselves do not show it.
"""

from __future__ import annotations

from typing import Any

import torch

from layerstep._torch import autograd_count
from layerstep._torch.copyslices import saved_inside
from layerstep._torch.saved import key_of
from layerstep._torch.tensors import is_tensor, is_view
from layerstep._torch.trees import tree_leaves
from layerstep.memory.ledger import MemoryLedger, Piece

__all__ = ["Hidden"]


class Hidden:
    """The memory that the node inside a CopySlices keeps, by the number of the CopySlices.

    When an operation in place on a view runs its kernel, its own node is made already, and the next number is
    that of the CopySlices around it (measured for 21 kinds of operations).
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[int, int, Piece | None]]] = {}

    def forget(self) -> None:
        self._held.clear()

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, ledger: MemoryLedger) -> None:
        """An operation has written its first operand."""
        written = args[0]
        if not (torch.is_grad_enabled() and is_tensor(written) and is_view(written)):
            return
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if is_tensor(leaf)]
        if not any(operand.requires_grad for operand in operands):
            return
        kept = saved_inside(func, args, kwargs)
        if kept is None:
            return
        held: list[tuple[int, int, Piece | None]] = [(0, size, None) for size in kept.own]
        for operand in (operands[place] for place in kept.operands):
            key = key_of(operand)
            piece = ledger.find(key) or ledger.add(operand, key, path="", part="forward")
            if piece is not None:
                held.append((key, piece.bytes, piece))
        self._held[autograd_count()] = held

    def held_by(self, number: int, ledger: MemoryLedger) -> list[tuple[int, int]] | None:
        """The memory that a node holds and its bytes; memory 0 belongs to the node alone. None: not known."""
        held = self._held.get(number)
        if held is None:
            return None
        return [(key, size) for key, size, piece in held if piece is None or ledger.find(key) is piece]
