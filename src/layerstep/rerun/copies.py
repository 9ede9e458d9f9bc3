"""Copies of a call's arguments for a rerun, which therefore cannot write to anything of the run."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor, version_of
from layerstep.errors import UserError, first_line
from layerstep.rerun.kv_caches import CacheBefore, Caches, CallProgress, is_cache
from layerstep.side_effects.random_streams import copy_of_generator, is_generator
from layerstep.tensors.clones import clone_of

__all__ = ["Copies"]

DEPTH = 6


class Copies:
    """New containers, cloned tensors, and key-value caches as they were when the call began.

    An object that occurs twice is copied once, because attention recognises self-attention by `query is key`.
    `length` is how many tokens the call processes: it adds as many to a cache.
    """

    def __init__(self, progress: CallProgress, length: int, caches: Caches | None = None) -> None:
        self._progress = progress
        self._length = length
        self._caches = caches
        self._made: dict[int, tuple[Any, Any]] = {}
        self._items: dict[int, list[int]] = {}

    def of(self, value: Any, depth: int = DEPTH) -> Any:
        if id(value) not in self._made:
            copy_ = self._copy(value, depth)
            self._made[id(value)] = (value, copy_)
            self._items[id(copy_)] = _items(copy_)
        return self._made[id(value)][1]

    def _copy(self, value: Any, depth: int) -> Any:
        def inside(item: Any) -> Any:
            return self.of(item, depth - 1)

        if is_tensor(value):
            return _clone_of_input(value)
        if is_generator(value):
            return copy_of_generator(value)
        if not depth or isinstance(value, nn.Module | type):
            return value
        if type(value) in (tuple, list):
            return type(value)(map(inside, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(inside, value))
        if type(value) is dict:
            return {key: inside(item) for key, item in value.items()}
        if is_cache(value):
            known = self._caches.before(value) if self._caches is not None else None
            return known if known is not None else CacheBefore(value, self._progress, self._length)
        if isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
            return _object(value, inside)
        return value

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors among the originals, each with its copy."""
        return [(one, copy_) for one, copy_ in self._made.values() if is_tensor(one)]

    def were_written(self) -> bool:
        """Do the copies differ from the originals after a call?

        Then the real call has changed the originals too.
        """
        return any(
            _differ(before, after) if is_tensor(after) else _items(after) != self._items[id(after)]
            for before, after in self._made.values()
            if before is not after
        )


def _clone_of_input(tensor: Tensor) -> Tensor:
    try:
        return clone_of(tensor)
    except Exception as error:  # freed since, or inside vmap
        line = first_line(error)
        raise UserError(f"one of its inputs cannot be copied: {line}", "stop at its enter") from None


def _differ(before: Tensor, after: Tensor) -> bool:
    if version_of(after) == 0:
        return False
    try:
        return before.shape != after.shape or not bool(((before == after) | (before != before)).all())
    except Exception:  # a kind of tensor that cannot be compared: it was written, so it may differ
        return True


def _items(value: Any) -> list[int]:
    """The ids of what a container or an object of the user holds."""
    if isinstance(value, dict | list):
        return [id(item) for item in (value.values() if isinstance(value, dict) else value)]
    if isinstance(value, Tensor | CacheBefore) or not isinstance(getattr(value, "__dict__", None), dict):
        return []
    return [id(item) for item in value.__dict__.values()]


def _object(value: Any, inside: Any) -> Any:
    """Copy an object of the user with its attributes, so that the rerun does not append to its caches."""
    try:
        twin = copy.copy(value)
        twin.__dict__.update({name: inside(item) for name, item in value.__dict__.items()})
    except Exception:  # it refuses to be copied: pass it as it is
        return value
    return twin
