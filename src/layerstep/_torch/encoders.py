"""The forward of encoder layers, with a stand-in for those that are tapped; on torch 2.13.0.

The stand-in is on the class: a program may call `layer.forward()` itself, and a subclass `super().forward()`.
It is there while a layer is tapped.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["Standing", "encoders_plain"]

Wrap = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]


class Standing:
    """A stand-in for the forward of one layer, until it is removed."""

    __slots__ = ("_key", "_wrap")

    def __init__(self, module: nn.Module, wrap: Wrap) -> None:
        self._key, self._wrap = id(module), wrap
        known = _standing.get(self._key)
        if known is None or known[0]() is not module:
            known = _standing[self._key] = (weakref.ref(module), [])
        known[1].append(wrap)
        _patch()

    def remove(self) -> None:
        known = _standing.get(self._key)
        if known is not None and self._wrap in known[1]:
            known[1].remove(self._wrap)
            if not known[1]:
                del _standing[self._key]
        if not _standing:
            _unpatch()


_standing: dict[int, tuple[weakref.ref[nn.Module], list[Wrap]]] = {}
_Layer: Any = nn.TransformerEncoderLayer
_plain: Any = _Layer.forward


@functools.wraps(_plain)
def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return _plain(self, *args, **kwargs)
    known = _standing.get(id(self))
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
def encoders_plain() -> Iterator[None]:
    """Meanwhile the class has its own forward: TorchScript compiles what it finds there."""
    is_patched = _Layer.forward is _forward
    _unpatch()
    try:
        yield
    finally:
        if is_patched:
            _patch()
