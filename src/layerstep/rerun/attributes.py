"""Put back what a forward writes besides its result: attributes, lists, caches, the class of a module.

We reach them from the modules through lists, dictionaries and plain objects. What a forward does to globals,
files or objects with slots stays.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import set_version
from layerstep._torch.tensors import is_tensor, version_of
from layerstep.rerun.parts import parts_of
from layerstep.tensors.clones import clone_of, has_same_bits
from layerstep.tensors.observing import observing

__all__ = [
    "DEPTH",
    "HOOK_TABLES",
    "Attributes",
    "attributes_kept",
    "is_machinery",
    "leaf_kinds",
    "own_attributes",
    "put_back",
]

DEPTH = 4
DEPTH_OF_VALUES = 7
"""Arguments lie deeper: the keys of a layer in a cache among the keyword arguments, say."""
MOST = 20_000
"""The most objects to visit: a module that holds its trainer would lead to everything."""

_LEAVES: frozenset[type] = frozenset(
    [int, float, bool, str, type(None), torch.dtype, torch.device, nn.Parameter]
)
"""The types of most attributes that hold nothing else."""
_CONTAINERS = (list, dict, set, deque)
_PLAIN = frozenset([list, dict, set])
_NOT_STATE = (nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)
HOOK_TABLES = frozenset(name for name in vars(nn.Module()) if "_hook" in name)
"""Of every module: half of its attributes are such tables."""
_MOST_KINDS = 2000
leaf_kinds: set[type] = set(_LEAVES)
"""These, and the classes met so far of which no object is gone into: one look-up tells them."""


@contextlib.contextmanager
def attributes_kept(module: nn.Module) -> Iterator[list[str]]:
    """Undo at the end what a forward writes: `self.weights = …`, an append to a list, a filled cache.

    Gives a list, which then holds the names of the attributes that grew.
    """
    grew: list[str] = []
    state = Attributes(module)
    try:
        yield grew
    finally:
        grew += state.restore()


class Attributes:
    """The attributes of a module and its parts as they are now, and what is reached from some more values."""

    def __init__(self, module: nn.Module, *more: Any) -> None:
        self._seen: set[int] = set()
        self._parts = parts_of(module)
        self._attributes: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor, int]] = []
        with observing():
            for value in more:
                self._add(value, DEPTH_OF_VALUES)
            self._add_layers(self._parts.names)
            self._add_modules(self._parts.others)

    def _add_layers(self, names: list[dict[str, Any]]) -> None:
        """The attributes of torch's layers."""
        for each in names:
            self._add_attributes(each, DEPTH)

    def _add_modules(self, modules: list[nn.Module]) -> None:
        for module in modules:
            self._add_attributes(module.__dict__, DEPTH)

    def _add_attributes(self, names: dict[str, Any], depth: int) -> None:
        own = own_attributes(names)
        self._attributes.append((names, own, {name: _length(value) for name, value in own.items()}))
        for value in own.values():
            self._add(value, depth)

    def _add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in leaf_kinds or id(value) in self._seen or len(self._seen) > MOST:
            return
        self._seen.add(id(value))
        if issubclass(kind, Tensor):
            self._add_tensor(value)
        elif kind in _PLAIN:
            self._containers.append((value, value.copy()))
            if depth and value:
                self._add_all(value.values() if kind is dict else value, depth - 1)
        elif isinstance(value, _CONTAINERS):
            with contextlib.suppress(Exception):  # a class of the program's that cannot be copied
                self._containers.append((value, copy.copy(value)))
            if depth:
                self._add_all(value.values() if isinstance(value, dict) else value, depth - 1)
        elif isinstance(value, tuple):
            if depth:
                self._add_all(value, depth - 1)
        else:
            self._add_object(value, depth)

    def _add_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            if type(value) not in leaf_kinds:
                self._add(value, depth)

    def _add_object(self, value: Any, depth: int) -> None:
        if isinstance(value, _NOT_STATE):
            _note_leaf(type(value))
        elif depth and type(names := getattr(value, "__dict__", None)) is dict:
            self._add_attributes(names, depth - 1)

    def _add_tensor(self, tensor: Tensor) -> None:
        if _is_own_tensor(tensor):
            with contextlib.suppress(Exception):  # freed, or of a kind that cannot be copied
                self._tensors.append((tensor, clone_of(tensor), version_of(tensor)))

    def restore(self) -> list[str]:
        """Put everything back, and return the names of what had grown."""
        grew = []
        parts = self._parts.layers + self._parts.others
        for part, kind in zip(parts, self._parts.kinds, strict=True):
            if type(part) is not kind:
                object.__setattr__(part, "__class__", kind)
        for names, before, lengths in self._attributes:
            grew += [name for name in lengths if name in names and _length(names[name]) != lengths[name]]
            put_back(names, before)
        for container, contents in self._containers:
            if not _same(container, contents):
                with contextlib.suppress(Exception):  # a class of the program's that refuses
                    container.clear()
                    (container.update if isinstance(container, dict | set) else container.extend)(contents)
        with observing():
            self._restore_tensors()
        return grew

    def _restore_tensors(self) -> None:
        for tensor, content, version in self._tensors:
            with contextlib.suppress(Exception):  # of a kind that refuses it
                if not has_same_bits(tensor, content):  # not by its version: `.data` is written uncounted
                    tensor.data.copy_(content)
                if version_of(tensor) != version:
                    set_version(tensor, version)


def _note_leaf(kind: type) -> None:
    """No object of this class is gone into. Asked of the class, because `__class__` of an object may lie."""
    if issubclass(kind, _NOT_STATE):
        if len(leaf_kinds) > _MOST_KINDS:  # a program that makes classes as it goes: keep none alive
            leaf_kinds.intersection_update(_LEAVES)
        leaf_kinds.add(kind)


def own_attributes(names: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an object without what is ours or torch's machinery."""
    return {name: value for name, value in names.items() if not is_machinery(name, value)}


def put_back(names: dict[str, Any], before: dict[str, Any]) -> None:
    """Give an object its own attributes of before, and no others."""
    new = [name for name in names if name not in before]
    for name in [name for name in new if not is_machinery(name, names[name])]:
        del names[name]
    names.update(before)


def is_machinery(name: str, value: Any) -> bool:
    """Is this a table of hooks, or an object of the debugger? Putting these back would undo a detach."""
    return name in HOOK_TABLES or "_hook" in name or type(value).__module__.startswith("layerstep.")


def _length(value: Any) -> Any:
    """What an append changes: a shape, a length, a position."""
    if is_tensor(value):
        return value.shape
    if isinstance(value, _CONTAINERS):
        return len(value)
    return value if type(value) is int else None


def _is_own_tensor(value: Tensor) -> bool:
    return not isinstance(value, nn.Parameter) and not value.is_inference() and not value.is_meta


def _same(one: Any, other: Any) -> bool:
    """Do both hold the same objects? By identity, because `==` of tensors is not a yes or no."""
    if isinstance(one, dict):
        return _same([*one, *one.values()], [*other, *other.values()])
    if isinstance(one, set):
        return bool(one == other)
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))
