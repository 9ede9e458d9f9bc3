"""Replace the calls of single modules without putting anything on them.

Every call of a module runs `Module._call_impl`. While a call is replaced, the class has our function there,
with one look-up more. So a timed model is copied, saved, scripted and exported as without us, and
`inspect.signature(model.forward)` is the program's. A direct call of `forward` is not seen. Seen on torch
2.13.0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from layerstep._torch.dynamo import keep_dynamo_out

__all__ = ["CallReplacement", "compiled_call_of", "replacement_of", "set_compiled_call"]

_torchs_call: Callable[..., Any] = nn.Module._call_impl
_is_compiling = torch.compiler.is_dynamo_compiling
_installed: dict[int, CallReplacement] = {}
"""The outermost replacement for each module that has one, by the module's id."""


class CallReplacement:
    """Runs in place of each call of one module, without keeping the module alive. Subclasses do more."""

    __slots__ = ("inner", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module, functools.partial(_forget, id(module)))
        self.inner: Callable[..., Any] = _torchs_call
        """What it replaces, called with the module and its arguments."""

    def __call__(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return self.inner(module, *args, **kwargs)

    def install(self) -> None:
        """Take effect, around a replacement that is there already."""
        module = self.module()
        if module is None:
            return
        before = replacement_of(module)
        if before is not None:
            self.inner = before
        _installed[id(module)] = self
        if nn.Module._call_impl is _torchs_call:
            nn.Module._call_impl = _call_impl  # type: ignore[method-assign]

    def remove(self) -> None:
        """Put back what it replaced."""
        module = self.module()
        top: Any = replacement_of(module) if module is not None else None
        if top is self:
            if isinstance(self.inner, CallReplacement):
                _installed[id(module)] = self.inner
            else:
                del _installed[id(module)]
        while isinstance(top, CallReplacement) and top is not self:
            if top.inner is self:
                top.inner = self.inner
            top = top.inner
        _restore()


def replacement_of(module: nn.Module) -> CallReplacement | None:
    """The outermost replacement for the calls of a module."""
    found = _installed.get(id(module))
    return found if found is not None and found.module() is module else None


def compiled_call_of(module: nn.Module | None) -> Any:
    """What `module.compile()` has put on a module, which its calls run; None without it."""
    return module.__dict__.get("_compiled_call_impl") if module is not None else None


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Let the calls of a module that was compiled in place run this. Copies and files leave it out."""
    module._compiled_call_impl = call


def _call_impl(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _is_compiling():  # first, because dynamo folds it away
        return _torchs_call(self, *args, **kwargs)
    found = _installed.get(id(self))
    if found is None or found.module() is not self:
        return _torchs_call(self, *args, **kwargs)
    return found(self, *args, **kwargs)


def _forget(key: int, _: object) -> None:
    """A module is gone: another may get its id."""
    found = _installed.get(key)
    if found is not None and found.module() is None:
        del _installed[key]
        _restore()


def _restore() -> None:
    if not _installed and nn.Module._call_impl is _call_impl:
        nn.Module._call_impl = _torchs_call  # type: ignore[method-assign]


keep_dynamo_out(_call_impl, callees=False)
