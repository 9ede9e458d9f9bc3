"""Find the models of a script as they are called: the user edits nothing.

`nn.Module.__call__` is replaced by the same function with one look-up more. That costs
0.1 µs a call, against 1.8 µs for a global hook, and the compiler sees through it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from layerstep.engine._torch import call_frames, unwrap
from layerstep.engine.stack import call_text, caller_of, forget_locals, is_ours

__all__ = ["Discovery", "name_of", "owner_of"]

_LIBRARIES = tuple(
    {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], os.path.dirname(os.__file__)}
)


class Discovery:
    """Reports every outermost module call: `arrived(module, frame, is_new)`, before it runs."""

    def __init__(self, arrived: Callable[[nn.Module, FrameType, bool], None]) -> None:
        self._arrived = arrived
        self._inner: set[int] = set()
        self._roots: dict[int, weakref.ref[nn.Module]] = {}
        self._before: Any = None

    @property
    def is_on(self) -> bool:
        return self._before is not None

    def start(self) -> None:
        """Begin to look; once."""
        if self.is_on:
            return
        self._before = nn.Module.__call__
        inner, outermost = self._inner, self._outermost
        is_compiling = torch.compiler.is_dynamo_compiling

        # The body of Module._wrapped_call_impl, not a call to it: a second Python frame
        # would cost more than the look-up. is_compiling comes first, because dynamo folds it
        # away; the other order makes it guard on the set and recompile when that grows.
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and id(self) not in inner:
                outermost(self)
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def stop(self) -> None:
        """Put torch's own `__call__` back."""
        if self.is_on:
            nn.Module.__call__ = self._before  # type: ignore[method-assign]
            self._before = None

    def forget(self) -> None:
        """Look at every module anew: the models have changed."""
        self._inner.clear()
        self._roots.clear()

    def _outermost(self, module: nn.Module) -> None:
        if torch.compiler.is_compiling():
            return
        frame = sys._getframe(1)
        reference = self._roots.get(id(module))
        if reference is not None and reference() is module:
            self._arrived(module, frame, False)
            return
        if next(call_frames(frame), None) is not None:
            self._inner.add(id(module))  # made during a forward: a part of what is running
            return
        owner = owner_of(module, frame) or module
        self._remember(owner)
        self._arrived(owner, frame, True)

    def _remember(self, owner: nn.Module) -> None:
        ids = [id(module) for module in owner.modules() if module is not owner]
        self._inner.update(ids)
        self._inner.discard(id(owner))
        for key in ids:
            self._roots.pop(key, None)
        self._roots[id(owner)] = weakref.ref(owner)
        weakref.finalize(owner, self._gone, id(owner), ids).atexit = False

    def _gone(self, key: int, ids: list[int]) -> None:
        self._roots.pop(key, None)
        self._inner.difference_update(ids)


def _user_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames outside of installed libraries, innermost first."""
    found = []
    while frame is not None:
        if not is_ours(frame) and not frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen")):
            found.append(frame)
        frame = frame.f_back
    return found


def owner_of(module: nn.Module, frame: FrameType) -> nn.Module | None:
    """The model that a module called by itself belongs to: `model` in `model.encoder(x)`."""
    caller = caller_of(frame)
    if caller is None:
        return None
    values = [value for value in caller.f_locals.values() if isinstance(value, nn.Module)]
    forget_locals(caller)
    owners = [
        value for value in values if value is not module and any(part is module for part in value.modules())
    ]
    return max(owners, key=lambda owner: sum(1 for _ in owner.modules()), default=None)


def name_of(module: nn.Module, frame: FrameType) -> str:
    """What the script calls a model: its variable or attribute where one can be seen, else its class."""
    for user in _user_frames(frame):
        name = _name_in(user, module)
        if name:
            return name
    caller = caller_of(frame)
    text = call_text(caller).partition("(")[0] if caller is not None else ""
    name = text.rpartition(".")[2]
    return name if name.isidentifier() and name not in ("self", "__call__") else type(unwrap(module)).__name__


def _name_in(frame: FrameType, module: nn.Module) -> str:
    inner = unwrap(module)
    names = frame.f_locals
    try:
        for name, value in list(names.items()):
            if isinstance(value, nn.Module) and name != "self" and unwrap(value) is inner:
                return str(name)
        for name, value in getattr(names.get("self"), "__dict__", {}).items():
            if isinstance(value, nn.Module) and unwrap(value) is inner:
                return str(name)
    finally:
        del names
        forget_locals(frame)
    return ""
