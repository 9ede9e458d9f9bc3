"""A replacement for the forward of encoder layers, while they are tapped. Seen on torch 2.13.0.

It is on the class, because a program may call `layer.forward()` itself and a subclass `super().forward()`.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["ForwardReplacement", "without_replacements"]

Wrap = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]


class ForwardReplacement:
    """Replaces the forward of one layer until it is removed."""

    __slots__ = ("_key", "_wrap")

    def __init__(self, module: nn.Module, wrap: Wrap) -> None:
        self._key, self._wrap = id(module), wrap
        known = _replaced.get(self._key)
        if known is None or known[0]() is not module:
            known = _replaced[self._key] = (weakref.ref(module), [])
        known[1].append(wrap)
        _patch()

    def remove(self) -> None:
        known = _replaced.get(self._key)
        if known is not None and self._wrap in known[1]:
            known[1].remove(self._wrap)
            if not known[1]:
                del _replaced[self._key]
        if not _replaced:
            _unpatch()


_replaced: dict[int, tuple[weakref.ref[nn.Module], list[Wrap]]] = {}
_Layer: Any = nn.TransformerEncoderLayer
_plain: Any = _Layer.forward


@functools.wraps(_plain)
def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return _plain(self, *args, **kwargs)
    known = _replaced.get(id(self))
    forward: Callable[..., Any] = functools.partial(_plain, self)
    for wrap in known[1] if known is not None and known[0]() is self else ():
        forward = wrap(self, forward)
    return forward(*args, **kwargs)


def _patch() -> None:
    global _plain
    if _Layer.forward is not _forward:
        _plain = _Layer.forward  # the program may have put its own there
        _Layer.forward = _forward


def _unpatch() -> None:
    if _Layer.forward is _forward:
        _Layer.forward = _plain


@contextlib.contextmanager
def without_replacements() -> Iterator[None]:
    """Meanwhile the class has its own forward, because TorchScript compiles what it finds there."""
    is_patched = _Layer.forward is _forward
    _unpatch()
    try:
        yield
    finally:
        if is_patched:
            _patch()
