"""Compiled functions: which ones a program has, and whether they may call a model.

A model that is called in a compiled function is not seen: its modules are not called. While something is
armed, compiled code therefore runs eagerly if there is a function that may call a model. Without one it stays
compiled, because eager code may give other last digits.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from layerstep._torch import is_module_call
from layerstep._torch.compiling import CompileWatch

__all__ = ["CompiledFunction", "CompiledFunctions"]

MOST = 100
"""Functions that are remembered: some programs compile one for each call."""
DEPTH = 3
"""How far calls from function to function are followed."""


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A function that the program has given to `torch.compile`."""

    name: str
    place: str
    calls_models: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.place})" if self.place else self.name


class CompiledFunctions:
    """Those of a session; `added` is called with each that may call a model."""

    def __init__(self, added: Callable[[CompiledFunction], None], fail: Callable[[Exception], None]) -> None:
        self._added = added
        self._fail = fail
        self._watch = CompileWatch(self._compiled)
        self._known: dict[CompiledFunction, None] = {}

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[CompiledFunction]:
        return iter(list(self._known))

    @property
    def with_models(self) -> list[CompiledFunction]:
        """Those that may call a model."""
        return [each for each in self._known if each.calls_models]

    def _compiled(self, given: Any) -> None:
        try:
            found = _described(given)
            if found is not None and found not in self._known and len(self._known) < MOST:
                self._known[found] = None
                if found.calls_models:
                    self._added(found)
        except Exception as error:
            self._fail(error)


def _described(given: Any) -> CompiledFunction | None:
    """None for a module, which is known as a compiled model when it is found, and for torch's own."""
    owner = getattr(given, "__self__", None)
    is_module = isinstance(given, nn.Module) or is_module_call(given)
    if is_module or _is_torchs(given):
        return None
    function = inspect.unwrap(given)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return CompiledFunction(type(given).__name__, "", calls_models=True)
    place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    calls = _holds_model(owner) or _may_call_model(function, DEPTH)
    return CompiledFunction(code.co_qualname.rpartition("<locals>.")[2], place, calls)


def _may_call_model(function: Any, depth: int) -> bool:
    """Does it use a model by name, or call one of its own arguments, or a function that does?"""
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return isinstance(function, functools.partial) and _may_call_model(function.func, depth)
    for value in _used(function):
        if _holds_model(value):
            return True
        is_followed = depth and isinstance(value, FunctionType | MethodType) and not _is_torchs(value)
        if is_followed and value is not function and _may_call_model(value, depth - 1):
            return True
    return _calls_argument(function)


def _holds_model(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, type | FunctionType | ModuleType):
        return False
    held = value if isinstance(value, list | tuple | dict) else getattr(value, "__dict__", ())
    inside = list(held.values()) if isinstance(held, dict) else list(held)
    return any(isinstance(each, nn.Module) for each in inside[:MOST])


def _used(function: FunctionType) -> Iterator[Any]:
    """What its code refers to by the names of globals and of the functions around it."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def _calls_argument(function: FunctionType) -> bool:
    """`def step(model, x): return model(x)`; `self.model(x)` of an object that is not known here."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    parameters = set(inspect.signature(function).parameters)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(isinstance(each, ast.Name) and each.id in parameters for each in calls)
