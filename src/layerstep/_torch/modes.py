"""Torch's stacks of function and dispatch modes: push below all others, pop from anywhere.

A mode that stays on beyond a `with` block must be at the bottom of its stack, because the user's own blocks
pop whatever is on top. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep._torch.encoders import ForwardReplacement, may_be_one_kernel

__all__ = [
    "DEFERRED_POP",
    "DeferredPop",
    "PersistentFunctions",
    "autograd_on",
    "is_on_stack",
    "keeping_kernel",
    "pop_mode",
    "push_below",
    "users_modes_aside",
]

Mode = TorchFunctionMode | TorchDispatchMode


def push_below(mode: Mode) -> bool:
    """Push a mode below all others of this thread. Fallback: it is not pushed, and the answer is False."""
    try:
        before = _stack(mode)
        _pop_all(mode, len(before))
    except (AttributeError, TypeError):
        return False
    for each in (mode, *before):
        _push(each)
    return True


def pop_mode(mode: Mode) -> bool:
    """Remove a mode from anywhere in this thread's stack; False if it is not there."""
    if not is_on_stack(mode):
        return False
    before = _stack(mode)
    _pop_all(mode, len(before))
    for each in before:
        if each is not mode:
            _push(each)
    return True


class PersistentFunctions(TorchFunctionMode):
    """A function mode that lies below all others, where torch's modules keep the kernels that they have.

    Each of those modules leaves its kernel where any function mode is on. That may be one that is not needed
    any more: after a stop in its handler torch puts it back. So it is out of the stack in their forwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_aside = False
        """Is it out of the stack for the time of a forward?"""
        self._replaced: weakref.finalize[Any, Any] | None = None
        """Ends with the mode: a thread may end while it lies there."""

    def push_here(self) -> bool:
        """Lie in this thread from now on."""
        if not push_below(self):
            return False
        self._replaced = weakref.finalize(self, ForwardReplacement(None, keeping_kernel).remove)
        self._replaced.atexit = False
        return True

    def pop_here(self) -> bool:
        """Out of this thread's stack; no where its handler is at work."""
        if not pop_mode(self) and not self._is_aside:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """It is out of this thread's stack, by whatever way."""
        if self._replaced is not None:
            self._replaced()
            self._replaced = None


def keeping_kernel(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a module that may be one kernel, with our function modes out of the stack."""
    if not may_be_one_kernel(module):
        return forward

    def forward_alone(*args: Any, **kwargs: Any) -> Any:
        modes = [mode for mode in _functions() if isinstance(mode, PersistentFunctions) and pop_mode(mode)]
        for mode in modes:
            mode._is_aside = True
        try:
            return forward(*args, **kwargs)
        finally:
            for mode in modes:
                mode._is_aside = False
                if mode._replaced is not None:
                    push_below(mode)

    return forward_alone


@contextlib.contextmanager
def users_modes_aside() -> Iterator[None]:
    """Meanwhile the dispatch modes of the program see nothing; ours, which lie below them, do.

    Fallback: modes of torch's own, such as that of fake tensors, stay where they are, and all with them.
    """
    probe = TorchDispatchMode()
    theirs = [mode for mode in _stack(probe) if not type(mode).__module__.startswith("layerstep.")]
    if any(getattr(mode, "_mode_key", None) is not None for mode in theirs):
        theirs = []
    on_top = _stack(probe)[len(_stack(probe)) - len(theirs) :]
    if any(one is not other for one, other in zip(on_top, theirs, strict=True)):
        on_top = []
    _pop_all(probe, len(on_top))
    try:
        yield
    finally:
        for mode in on_top:
            _push(mode)


def is_on_stack(mode: Mode) -> bool:
    """Is this mode on this thread's stack?"""
    try:
        return any(each is mode for each in _stack(mode))
    except AttributeError:
        return False


def _stack(mode: Mode) -> list[Any]:
    if isinstance(mode, TorchFunctionMode):
        return _functions()
    return list(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


def _functions() -> list[Any]:
    return list(torch.overrides._get_current_function_mode_stack())


def _pop_all(mode: Mode, count: int) -> None:
    for _ in range(count):
        if isinstance(mode, TorchFunctionMode):
            torch._C._pop_torch_function_stack()
        else:
            torch._C._pop_torch_dispatch_stack(None)


def _push(mode: Any) -> None:
    if isinstance(mode, TorchFunctionMode):
        torch._C._push_on_torch_function_stack(mode)
    else:
        torch._C._push_on_torch_dispatch_stack(mode)


class DeferredPop:
    """Pops a mode from its own handler.

    Torch takes a mode off the stack while its handler runs, and puts it back afterwards. Only then does it
    release the handler's keyword arguments, and with them this object if it is there as `DEFERRED_POP`. Seen
    on 2.13.0; should torch change the order, the mode stays until the next boundary, and does nothing.
    """

    __slots__ = ("_pop",)

    def __init__(self, pop: Callable[[], object]) -> None:
        self._pop = pop

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._pop()


DEFERRED_POP = "layerstep"
"""A keyword that no kernel takes."""


@contextlib.contextmanager
def autograd_on() -> Iterator[None]:
    """Let autograd record operations in the handler of a dispatch mode, which runs below autograd.

    And let torch heed the bits of conjugate, negative and zero tensors: without them a kernel reads memory
    that a zero tensor of `jvp` does not have. Fallback: autograd does not record them, and a result that is
    shown there says that it needs no gradient.
    """
    guard = getattr(torch._C, "_PreserveDispatchKeyGuard", None)
    keys = getattr(torch._C, "DispatchKey", None)
    if guard is None or keys is None:
        yield
        return
    try:
        with guard():
            for name in ("AutogradFunctionality", "ADInplaceOrView", "Conjugate", "Negative", "ZeroTensor"):
                torch._C._dispatch_tls_set_dispatch_key_excluded(getattr(keys, name), False)
            yield
    finally:
        _renew_keys()


def _renew_keys() -> None:
    """Make the dispatch key by which torch asks the modes agree with the stack.

    The guard set that key back to what it was, so a mode that was pushed meanwhile would see nothing, nor
    would any above it. The first push sets the key, the last pop clears it.
    """
    probe = TorchDispatchMode()
    before = _stack(probe)
    _pop_all(probe, len(before))
    for each in before or [probe]:
        _push(each)
    if not before:
        _pop_all(probe, 1)
