"""What an autograd node holds for its backward, read without unpacking. Seen on torch 2.13.0.

`torch.autograd.graph.saved_tensors_hooks` would see it, too, but disturbs (each tried on 2.13): autograd no
longer refuses a tensor that was written after it was saved; a saved parameter comes back as another object,
without the attributes that it was given; `torch.func.grad` raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.guards import functions_off

__all__ = [
    "OPAQUE",
    "has_saved_tensor",
    "is_opaque",
    "is_written_view",
    "key_of",
    "memory_of",
    "saved_by",
    "saved_tensor",
    "saved_word",
]

_RAW = "_raw_saved_"
_names: dict[type, tuple[str, ...]] = {}
OPAQUE = ("::CppNode", "DifferentiableGraph", "CopySlices")
"""Nodes that do not show what they hold: those of C++ extensions, of TorchScript, and of a view that is
written in place, which hides the node of the operation."""


def saved_by(node: Any) -> Iterator[Any]:
    """What a node has saved, as autograd keeps it: tensors, or what a pack hook made of them.

    Nothing is unpacked, so no hook of the program runs and no version is checked. Fallback: without
    `SavedTensor.data` nothing is known, and a step seems to hold nothing.
    """
    kind = type(node)
    names = _names.get(kind)
    if names is None:
        names = _names[kind] = tuple(name for name in dir(node) if name.startswith(_RAW))
    for name in names:
        try:
            raw = getattr(node, name)
        except (AttributeError, RuntimeError):  # it has run and released them
            continue
        for each in raw if isinstance(raw, tuple | list) else (raw,):
            held = _data(each)
            if held is not None:
                yield held
            yield from _checkpointed(each)
    if issubclass(kind, torch.autograd.function.BackwardCFunction):
        yield from vars(node).values()  # `ctx.mask = mask`


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """A tensor that a node has saved, `saved_tensor(node, "target")`, without unpacking it.

    Fallback: None, also where a pack hook has put something else in its place.
    """
    try:
        held = _data(getattr(node, _RAW + name, None))
    except RuntimeError:  # it has run and released them
        return None
    return held if isinstance(held, Tensor) else None


def has_saved_tensor(node: Any, name: str) -> bool:
    """Does a node save a tensor under this name, and not a plain number? Fallback: no."""
    return hasattr(node, _RAW + name)


def saved_word(node: Any, name: str) -> Any:
    """What a node has saved besides tensors: `saved_word(node, "reduction")`. Fallback: None."""
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def _data(raw: Any) -> Any:
    try:
        return raw.data
    except (AttributeError, RuntimeError):
        return None


def _checkpointed(raw: Any) -> Iterator[Any]:
    """Checkpointing saves nothing, but its unpack hook keeps the arguments of the block.

    It also keeps the random state that the recomputation begins with. Fallback: if torch renames the
    attributes, the inputs of checkpointed blocks are not counted.
    """
    for inner in _enclosed(getattr(raw, "unpack_hook", None), depth=2):
        kept = getattr(inner, "saved_args", None)
        if isinstance(kept, list):
            for each in kept:
                data = _data(each)
                if data is not None:
                    yield data
            yield from _enclosed(getattr(inner, "recompute_fn", None), depth=1)


def _enclosed(function: Any, *, depth: int) -> Iterator[Any]:
    """What a function keeps in its closure, and the functions there in theirs."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        yield value
        if depth > 1 and callable(value):
            yield from _enclosed(value, depth=depth - 1)


def is_opaque(node: Any) -> bool:
    """Does this node not show what it holds?"""
    if type(node).__name__.endswith("Backward0"):  # one of torch's own, most of all there are
        return False
    return any(word in node.name() for word in OPAQUE)


def is_written_view(node: Any) -> bool:
    """Is this the node of a view that was written in place, around that of the operation?"""
    return bool(node.name().endswith("CopySlices"))


def key_of(tensor: Tensor) -> int:
    """The number of a tensor's memory: the same for all its views until the memory is freed.

    Fallback: 0 where there is no single piece of memory (sparse, nested by layout, in a transform).
    """
    return memory_of(tensor)[0]


def memory_of(tensor: Tensor) -> tuple[int, Any]:
    """The number of a tensor's memory and the storage itself; 0 and nothing where there is none."""
    try:
        with functions_off():
            storage = tensor.untyped_storage()
        return storage._cdata, storage
    except Exception:  # lazy, freed, or a class that refuses every question
        return 0, None
