"""A copy of a model to try things on, which has nothing in common with the original."""

from __future__ import annotations

import copy
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from layerstep.errors import UserError, first_line
from layerstep.tensors.containers import tensors_of

__all__ = ["twin_of"]

DEPTH = 4
"""Of functions that hold functions: how far we look for a module in them."""


def twin_of(module: nn.Module) -> nn.Module:
    """A copy of a module with its hooks; a `UserError` if it cannot be copied whole.

    A tensor with a graph behind it, such as attention weights that a module keeps, is copied without the
    graph: `copy.deepcopy` refuses it otherwise.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            if _holds_module(value):
                where = f"`{name}` of a {type(part).__name__}"
                raise UserError(f"the model cannot be copied: {where} is a function that holds the model")
            for tensor in tensors_of(value):
                if tensor.grad_fn is not None:
                    memo[id(tensor)] = tensor.detach().clone()
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # it holds something that refuses to be copied
        raise UserError(f"the model cannot be copied: {first_line(error)}") from None


def _holds_module(value: Any, depth: int = DEPTH) -> bool:
    """Would a copy of this function run modules of the original? A copy shares what a function holds.

    Methods and `functools.partial` are copied with what they are bound to.
    """
    if not isinstance(value, FunctionType) or not depth:
        return False
    for cell in value.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not set yet
            continue
        held = held.__self__ if isinstance(held, MethodType) else held
        if isinstance(held, nn.Module) or _holds_module(held, depth - 1):
            return True
    return False
