"""Who else holds a tensor that an edit replaces: they keep the old value, and that must be said once."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.tensors import base_of, is_tensor, is_view
from layerstep.calls.events import Event, Phase
from layerstep.tensors.containers import tensors_of

__all__ = ["kept_elsewhere"]

_WRITES = "what is written to the view in place no longer reaches it"
MOST = 3
"""Names in one notice."""


def kept_elsewhere(before: Event, after: Event, path: str) -> str:
    """What of the values that an edit has replaced the program still has under other names, in words."""
    if before.phase is not Phase.EXIT:
        return ""  # the caller has its own names for what it gives
    new = {id(tensor) for tensor in tensors_of(after.output)}
    replaced = [tensor for tensor in tensors_of(before.output) if id(tensor) not in new]
    names = [name for tensor in replaced for name in _attributes(before.module, tensor, path)]
    if names:
        more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
        return f"{', '.join(names[:MOST])}{more} keeps the old value: it is the same tensor"
    inputs = tensors_of((before.args, before.kwargs))
    for tensor in replaced:
        if _is_view_of(tensor, inputs):
            return f"{path} returns a view of its input, which keeps the old value; {_WRITES}"
        if _has_held_base(tensor):
            return f"{path} returns a view of a tensor that the program holds, too; {_WRITES}"
    return ""


def _attributes(module: Any, tensor: Tensor, path: str) -> list[str]:
    """The attributes of a module and its parts that hold this tensor."""
    found = []
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute.startswith("_"):
                continue  # torch's tables, and what the class calls its own affair
            held = [value] if is_tensor(value) else value if isinstance(value, list | tuple) else ()
            if any(each is tensor for each in held):
                found.append(".".join(filter(None, (path, name, attribute))))
    return found


def _is_view_of(tensor: Tensor, others: list[Tensor]) -> bool:
    if not is_view(tensor) or any(other is tensor for other in others):
        return False
    base = base_of(tensor)
    return any(other is base or (is_view(other) and base_of(other) is base) for other in others)


def _has_held_base(tensor: Tensor) -> bool:
    """Has Python a name for the tensor that this one is a view of?"""
    return is_view(tensor) and _holders(tensor) > _holders(_view_alone())


def _view_alone() -> Tensor:
    return torch.empty(1).view(1, 1)


def _holders(view: Tensor) -> int:
    base = base_of(view)
    return sys.getrefcount(base)
