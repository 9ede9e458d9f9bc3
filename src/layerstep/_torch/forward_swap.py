"""The forward that a module call is about to run, swapped for one call.

In a forward pre-hook it is too late to patch `module.forward`: `Module._call_impl` has read it. It keeps it
in a cell of its nested function `inner`, and that cell belongs to the one call. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, CodeType, FrameType
from typing import Any

from torch import nn

from layerstep._torch import call_frames, module_call_code

__all__ = ["can_swap", "swap_forward"]

_INNER, _FORWARD = "inner", "forward_call"


def swap_forward(
    frame: FrameType | None, module: nn.Module, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> bool:
    """Let a call that is at its pre-hooks run `wrap(forward)` instead of its forward. Did it work?

    Fallback: the call is left alone, and what its end should undo is undone at the next event.
    """
    cell = _forward_cell(frame, module) if can_swap() else None
    if cell is None:
        return False
    cell.cell_contents = wrap(cell.cell_contents)
    return True


@functools.cache
def can_swap() -> bool:
    """Is torch's call built as this file expects? Read from its code, so that no hook runs."""
    nested = [const for const in module_call_code.co_consts if isinstance(const, CodeType)]
    return any(code.co_name == _INNER and _FORWARD in code.co_freevars for code in nested)


def _forward_cell(frame: FrameType | None, module: nn.Module) -> CellType | None:
    call = next(call_frames(frame), None)
    if call is None:
        return None
    names = call.f_locals
    called, inner = names.get("self"), names.get(_INNER)
    if type(names) is dict:
        names.clear()  # up to Python 3.12 a copy, which the frame would keep; torch itself never asks for it
    if called is not module or inner is None or _FORWARD not in inner.__code__.co_freevars:
        return None
    cell: CellType = inner.__closure__[inner.__code__.co_freevars.index(_FORWARD)]
    return cell
