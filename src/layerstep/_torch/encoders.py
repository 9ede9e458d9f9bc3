"""The forward of torch's modules that may be one kernel, with stand-ins; on torch 2.13.0.

The stand-ins are on the classes: a program may call `layer.forward()` itself, and a subclass
`super().forward()`. They are there while they are needed.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["KINDS", "ForwardReplacement", "may_be_one_kernel", "without_replacements"]

Wrap = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]

KINDS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Each has a kernel that it leaves where a function mode is on."""


def may_be_one_kernel(module: nn.Module) -> bool:
    """Is this one of torch's modules that leave their kernel where a function mode is on, and may it take it?

    Each tests `has_torch_function`, which a mode makes true; the last digits would then be others.
    """
    if not isinstance(module, KINDS) or module.training:
        return False
    deciding = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    return not (torch.is_grad_enabled() and any(p.requires_grad for p in deciding.parameters()))


class ForwardReplacement:
    """A stand-in for the forward of one module, or of all modules of these kinds, until it is removed."""

    __slots__ = ("_key", "_wrap")

    def __init__(self, module: nn.Module | None, wrap: Wrap) -> None:
        self._key, self._wrap = id(module) if module is not None else 0, wrap
        if module is None:
            _for_all.append(wrap)
        else:
            known = _replaced.get(self._key)
            if known is None or known[0]() is not module:
                known = _replaced[self._key] = (weakref.ref(module), [])
            known[1].append(wrap)
        _patch()

    def remove(self) -> None:
        known = _replaced.get(self._key)
        if not self._key and self._wrap in _for_all:
            _for_all.remove(self._wrap)
        elif known is not None and self._wrap in known[1]:
            known[1].remove(self._wrap)
            if not known[1]:
                del _replaced[self._key]
        if not _replaced and not _for_all:
            _unpatch()


_replaced: dict[int, tuple[weakref.ref[nn.Module], list[Wrap]]] = {}
_for_all: list[Wrap] = []
"""Around those of single modules."""


class _Patch:
    """Our forward of one class."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._plain: Any = kind.forward

        @functools.wraps(kind.forward)
        def forward(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            plain = self._plain
            if torch.compiler.is_compiling():
                return plain(module, *args, **kwargs)
            known = _replaced.get(id(module))
            call: Callable[..., Any] = functools.partial(plain, module)
            for wrap in (*(known[1] if known is not None and known[0]() is module else ()), *_for_all):
                call = wrap(module, call)
            return call(*args, **kwargs)

        self._forward = forward

    @property
    def is_on(self) -> bool:
        return self._kind.forward is self._forward

    def put(self) -> None:
        if not self.is_on:
            self._plain = self._kind.forward  # the program may have put its own there
            self._kind.forward = self._forward

    def remove(self) -> None:
        if self.is_on:
            self._kind.forward = self._plain


_patches = tuple(_Patch(kind) for kind in KINDS)


def _patch() -> None:
    for patch in _patches:
        patch.put()


def _unpatch() -> None:
    for patch in _patches:
        patch.remove()


@contextlib.contextmanager
def without_replacements() -> Iterator[None]:
    """Meanwhile the classes have their own forward: TorchScript compiles what it finds there."""
    is_patched = any(patch.is_on for patch in _patches)
    _unpatch()
    try:
        yield
    finally:
        if is_patched:
            _patch()
