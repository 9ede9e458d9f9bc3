"""What the node inside a `CopySlices` saves, found by running its operation on meta tensors.

An operation in place on a view makes a node for the base, `CopySlices`, which hides the operation's own node.
The same operation on meta tensors that are not views makes the same node without a `CopySlices` around it,
and that node tells which operands it saves and how much other memory. Seen on torch 2.13.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.saved import key_of, saved_by
from layerstep._torch.tensors import is_tensor
from layerstep._torch.trees import tree_leaves, tree_map

__all__ = ["SavedOperands", "saved_inside"]

MOST = 512
_known: dict[Any, SavedOperands | None] = {}
_COPY = torch.ops.aten.copy_.default
"""What `y[:, 3] = x` runs, often in loops: its node keeps nothing."""


@dataclass(frozen=True, slots=True)
class SavedOperands:
    """The operands that a node saves, by their place among the tensors, and the bytes of its other memory."""

    operands: tuple[int, ...]
    own: tuple[int, ...] = ()


def saved_inside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SavedOperands | None:
    """What the node of an operation in place saves. Fallback: None, if the operation fails on meta tensors.

    The trial runs in a thread of its own, where autograd is on, no mode is on, and its nodes do not take
    numbers of the program. The first trial makes torch import its meta kernels, which takes 0.4 to 0.9 s.
    """
    if func is _COPY:
        return SavedOperands(())
    try:
        leaves = tree_leaves((args, kwargs))
        key = (func, *(_sign(leaf) for leaf in leaves))
        if key not in _known:
            if len(_known) >= MOST:
                _known.clear()
            _known[key] = _try(func, args, kwargs)
        return _known[key]
    except Exception:  # an operand that is not hashable, or a tensor subclass
        return None


def _sign(leaf: Any) -> Any:
    if is_tensor(leaf):
        if type(leaf) not in (Tensor, torch.nn.Parameter) or leaf.layout is not torch.strided:
            raise TypeError(type(leaf))
        return leaf.dtype, leaf.requires_grad, tuple(leaf.shape), leaf.stride()
    return type(leaf), leaf


def _try(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SavedOperands | None:
    found: list[SavedOperands] = []
    twins: list[Tensor] = []

    def twin(leaf: Any) -> Any:
        if not is_tensor(leaf):
            return leaf
        made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        twins.append(made.requires_grad_(leaf.requires_grad))
        return made.clone() if len(twins) == 1 and leaf.requires_grad else made

    def run() -> None:
        try:
            given, named = tree_map(twin, (args, kwargs))
            result = func(*given, **named)
            twins[0] = given[0]
            found.append(_read(result.grad_fn, twins))
        except Exception:
            found.clear()

    thread = threading.Thread(target=run, name="layerstep-twin", daemon=True)
    thread.start()
    thread.join()
    return found[0] if found else None


def _read(node: Any, twins: list[Tensor]) -> SavedOperands:
    places = {key_of(each): place for place, each in reversed(list(enumerate(twins)))}
    kept, own = dict[int, None](), dict[int, int]()
    for tensor in _tensors(node):
        key = key_of(tensor)
        if key in places:
            kept[places[key]] = None
        elif key:
            own[key] = int(tensor.untyped_storage().nbytes())
    return SavedOperands(tuple(kept), tuple(own.values()))


def _tensors(node: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(list(saved_by(node))) if is_tensor(each))
