"""What can be reached from values of the program: tensors and generators, with the names that lead to them.

The way goes through containers, attributes of plain objects and modules, closures and bound methods. It is
bounded; if it was cut short, the answer says so.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from layerstep.side_effects.random_streams import is_generator

__all__ = ["MOST", "Reach"]

DEPTH = 6
MOST = 10_000
"""Objects that are looked at: an object that holds its trainer would lead to everything."""
MOST_ITEMS = 1_000
"""Of one container."""

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type, ModuleType)
_MACHINERY = frozenset(nn.Module().__dict__) - {"_parameters", "_buffers", "_modules"}
"""Attributes that every module has: tables of hooks."""


class Reach:
    """Collects tensors, if they are wanted, and generators. What is found twice keeps its first name."""

    def __init__(self, *, tensors: bool = True, most: int = MOST) -> None:
        self._wants_tensors = tensors
        self.tensors: list[tuple[str, Tensor]] = []
        self.generators: list[Any] = []
        self.is_cut = False
        self.place = ""
        """Where the names are: put after each."""
        self._left = most
        self._seen: dict[int, Any] = {}

    def add(self, name: str, value: Any, depth: int = DEPTH) -> None:
        """Look at a value and at what it holds."""
        kind = type(value)  # not `isinstance`: it would ask the object, and a proxy may say anything
        if issubclass(kind, _PLAIN) or id(value) in self._seen:
            return
        is_tensor = issubclass(kind, Tensor)
        if is_tensor and not self._wants_tensors:
            return
        if self._left <= 0:
            self.is_cut = True
            return
        self._left -= 1
        self._seen[id(value)] = value
        if is_tensor:
            self._add_tensor(name, value)
        elif is_generator(value):
            self.generators.append(value)
        elif depth:
            self._add_inside(name, value, depth - 1)

    def has(self, value: Any) -> bool:
        """Was it looked at already?"""
        return id(value) in self._seen

    def skip(self, value: Any) -> None:
        """Do not look at this: it is known from elsewhere."""
        self._seen[id(value)] = value

    def _add_tensor(self, name: str, value: Tensor) -> None:
        self.tensors.append((f"{name}{self.place}", value))
        with contextlib.suppress(Exception):  # a subclass that has no such thing, or warns
            if value.is_leaf and value.grad is not None:
                self.add(f"{name}.grad", value.grad)

    def _add_inside(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, nn.Module):
            self.add_module(name, value)
        elif issubclass(kind, dict):
            for key, item in _first(dict.items(value)):
                self.add(f"{name}[{_key(key)}]", item, depth)
        elif issubclass(kind, list | tuple | set | frozenset | deque):
            for number, item in enumerate(_first(value)):
                self.add(f"{name}[{number}]", item, depth)
        elif issubclass(kind, FunctionType | MethodType | partial):
            self._add_callable(name, value, depth)
        else:
            for key, item in _first(_attributes(value)):
                self.add(f"{name}.{key}", item, depth)

    def add_module(self, name: str, module: nn.Module) -> None:
        """A module with all modules inside: their state, their attributes, and what their methods name."""
        kinds: dict[type, None] = {}
        for path, part in _parts(module):
            inside = f"{name}.{path}" if path else name
            self._seen[id(part)] = part
            kinds[type(part)] = None
            for key, item in _first(_attributes(part)):
                if key in ("_parameters", "_buffers"):
                    for own, tensor in item.items():
                        self.add(f"{inside}.{own}", tensor)
                elif key != "_modules" and key not in _MACHINERY:
                    self.add(f"{inside}.{key}", item, DEPTH - 1)
        for kind in kinds:
            if id(kind) not in self._seen:
                self._seen[id(kind)] = kind
                for method in _methods(kind):
                    self._add_function(name, method, DEPTH - 2)

    def _add_callable(self, name: str, value: Any, depth: int) -> None:
        """What a function, a bound method or a partial application holds."""
        if isinstance(value, FunctionType):
            self._add_function(name, value, depth)
            return
        is_bound = isinstance(value, MethodType)
        held = (value.__self__,) if is_bound else (*value.args, *value.keywords.values())
        for item in (value.__func__ if is_bound else value.func, *held):
            self.add(name, item, depth)

    def _add_function(self, name: str, function: FunctionType, depth: int) -> None:
        """Its closure and defaults; of its globals the generators and functions that it names."""
        if not depth or _is_librarys(function.__module__):
            return
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is not filled yet
                self.add(f"{variable} of {function.__name__}", cell.cell_contents, depth)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add(f"a default of {function.__name__}", value, depth)
        names = set(_names_in(function.__code__))
        for value in [function.__globals__[each] for each in names if each in function.__globals__]:
            if is_generator(value) or isinstance(value, FunctionType):
                self.add(name, value, depth)
            elif isinstance(value, ModuleType) and not _is_librarys(value.__name__):
                inside = vars(value)
                for item in [inside[each] for each in names if is_generator(inside.get(each))]:
                    self.add(name, item)


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules in a module; none of one that is being made or copied, and has no table of them yet."""
    try:
        return list(module.named_modules())
    except Exception:  # or the program's own `named_modules` raises
        return []


def _attributes(value: Any) -> Any:
    """What an object holds; no code of its class is run to ask for it."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return dict.items(found) if isinstance(found, dict) else ()


def _first(items: Any) -> list[Any]:
    """The first items as they are now; none if another thread adds to them meanwhile."""
    with contextlib.suppress(RuntimeError):
        return list(itertools.islice(iter(items), MOST_ITEMS))
    return []


def _key(key: Any) -> str:
    text = repr(key) if isinstance(key, str | int) else type(key).__name__
    return text if len(text) <= 40 else f"{text[:39]}…"


def _methods(kind: type) -> list[FunctionType]:
    """The functions of a class and its bases, as far as no library defines them."""
    bases = [base for base in kind.__mro__ if not _is_librarys(base.__module__)]
    return [value for base in bases for value in vars(base).values() if isinstance(value, FunctionType)]


def _is_librarys(name: str | None) -> bool:
    return (name or "").partition(".")[0] in ("torch", "numpy", "builtins", "layerstep")


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that a code object and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
