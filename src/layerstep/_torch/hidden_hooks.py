"""Hooks on a module that copies, files and scripted code of the model leave out.

Torch keeps the hooks of a module in tables, each an `OrderedDict` in the module's `__dict__`. Besides a call,
three things read these tables:

- pickle, `torch.save` and `copy.deepcopy` ask `copyreg.dispatch_table` how to take an `OrderedDict` apart.
  While one of our hooks is on, our entry there leaves our hooks out. A file then holds nothing of ours: it
  loads with `weights_only=True`, and where layerstep is not installed.
- `torch.jit.script` and `torch.jit.trace` compile the hooks that they find. They find only the program's.
- quantization puts the hooks of a layer on the layer that takes its place; `taps` removes them there.

Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from layerstep._torch.encoders import without_replacements

__all__ = ["HiddenHook", "OwnHook", "without_own_hooks"]

_TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class OwnHook:
    """The base class of our hooks. Copies and pickles of a table leave them out."""

    __slots__ = ()


class HiddenHook:
    """One hook of ours on one module."""

    __slots__ = ("_handle", "_tables")

    def __init__(self, module: nn.Module, handle: RemovableHandle) -> None:
        self._handle = handle
        tables = [module.__dict__.get(name) for name in _TABLES]
        self._tables = [id(table) for table in tables if table is not None and handle.id in table]
        for table in tables:
            if table is not None and id(table) in self._tables:
                known = _ours.get(id(table))
                if known is None or known[0]() is not table:
                    known = _ours[id(table)] = (weakref.ref(table), set())
                known[1].add(handle.id)
        _patch()

    def remove(self) -> None:
        """Take the hook off the module."""
        self._handle.remove()
        for key in self._tables:
            known = _ours.get(key)
            if known is not None:
                known[1].discard(self._handle.id)
                if not known[1]:
                    del _ours[key]
        if not _ours:
            _unpatch()


_ours: dict[int, tuple[weakref.ref[Any], set[int]]] = {}
"""By the id of a table: the table, and the keys of our hooks in it."""


def _users_items(table: OrderedDict[Any, Any]) -> list[tuple[Any, Any]] | None:
    """What a table holds without our hooks; None if it holds none of ours."""
    known = _ours.get(id(table))
    keys = known[1] if known is not None and known[0]() is table else frozenset[int]()
    theirs = [item for item in table.items() if item[0] not in keys and not isinstance(item[1], OwnHook)]
    return theirs if len(theirs) < len(table) else None


# --- copies and pickles ---


def _reduce_table(table: OrderedDict[Any, Any]) -> Any:
    theirs = _users_items(table)
    if theirs is None:
        return _before(table) if _before is not None else table.__reduce_ex__(2)
    return (*table.__reduce_ex__(2)[:4], iter(theirs))


_before: Callable[[Any], Any] | None = None
"""How the program itself pickles an `OrderedDict`; None: in Python's own way."""


# --- TorchScript ---


@contextlib.contextmanager
def without_own_hooks(module: nn.Module) -> Iterator[None]:
    """Meanwhile the tables of the module and its parts hold only the program's hooks."""
    hidden: list[tuple[nn.Module, str, Any]] = []
    for part in module.modules():
        for name in _TABLES:
            table = part.__dict__.get(name)
            theirs = _users_items(table) if isinstance(table, OrderedDict) else None
            if theirs is not None:
                hidden.append((part, name, table))
                part.__dict__[name] = OrderedDict(theirs)
    try:
        yield
    finally:
        for part, name, table in hidden:
            part.__dict__[name] = table


_MAKER = "create_script_module"
"""`torch.jit.script` and `torch.jit.trace` hand the module to it. Fallback: they see our hooks and raise."""


def _without_our_hooks(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with without_own_hooks(nn_module), without_replacements():
            return make(nn_module, *args, **kwargs)

    return made


_our_maker: Any = None
_torchs_maker: Any = None


def _patch() -> None:
    """The first hook of ours is on a module."""
    global _before, _our_maker, _torchs_maker
    if copyreg.dispatch_table.get(OrderedDict) is not _reduce_table:
        _before = copyreg.dispatch_table.get(OrderedDict)
        copyreg.pickle(OrderedDict, _reduce_table)
    scripting: Any = torch.jit._recursive
    if _our_maker is None and hasattr(scripting, _MAKER):
        _torchs_maker = getattr(scripting, _MAKER)
        _our_maker = _without_our_hooks(_torchs_maker)
        setattr(scripting, _MAKER, _our_maker)


def _unpatch() -> None:
    """The last hook of ours is off. What the program has put there meanwhile stays."""
    global _before, _our_maker
    if copyreg.dispatch_table.get(OrderedDict) is _reduce_table:
        del copyreg.dispatch_table[OrderedDict]
        if _before is not None:
            copyreg.dispatch_table[OrderedDict] = _before
    _before = None
    if _our_maker is not None:
        if getattr(torch.jit._recursive, _MAKER) is _our_maker:
            setattr(torch.jit._recursive, _MAKER, _torchs_maker)
        _our_maker = None
