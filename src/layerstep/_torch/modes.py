"""Torch's stacks of function and dispatch modes: to lie below all others, and to see normally from inside.

A mode that stays on beyond a `with` block must lie at the bottom of its stack: the user's own blocks pop
whatever is on top. Seen on torch 2.13.0.
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

from layerstep._torch.encoders import Standing, may_be_one_kernel

__all__ = ["LEAVING", "LastingFunctions", "Leaving", "autograd_on", "lay_below", "lies_below", "take_out"]

Mode = TorchFunctionMode | TorchDispatchMode


def lay_below(mode: Mode) -> bool:
    """Put a mode under all others of this thread. Fallback: it is not put there, and the answer is no."""
    try:
        before = _stack(mode)
        _pop_all(mode, len(before))
    except (AttributeError, TypeError):
        return False
    for each in (mode, *before):
        _push(each)
    return True


def take_out(mode: Mode) -> bool:
    """Take a mode out of this thread's stack, wherever in it it lies; no if it does not."""
    if not lies_below(mode):
        return False
    before = _stack(mode)
    _pop_all(mode, len(before))
    for each in before:
        if each is not mode:
            _push(each)
    return True


class LastingFunctions(TorchFunctionMode):
    """A function mode that lies below all others, where torch's modules keep the kernels that they have.

    Each of those modules leaves its kernel where any function mode is on. That may be one that nobody needs
    any more: after a stop in its handler torch puts it back. So it is out of the stack in their forwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_aside = False
        """Is it out of the stack for the time of a forward?"""
        self._standing: weakref.finalize[Any, Any] | None = None
        """Ends with the mode: a thread may end while it lies there."""

    def put(self) -> bool:
        """Lie in this thread from now on."""
        if not lay_below(self):
            return False
        self._standing = weakref.finalize(self, Standing(None, _aside).remove)
        self._standing.atexit = False
        return True

    def take_away(self) -> bool:
        """Out of this thread's stack; no where its handler is at work."""
        if not take_out(self) and not self._is_aside:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """It is out of this thread's stack, by whatever way."""
        if self._standing is not None:
            self._standing()
            self._standing = None


def _aside(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a module that may be one kernel, with our function modes out of the stack."""
    if not may_be_one_kernel(module):
        return forward

    def forward_alone(*args: Any, **kwargs: Any) -> Any:
        modes = [mode for mode in _functions() if isinstance(mode, LastingFunctions) and take_out(mode)]
        for mode in modes:
            mode._is_aside = True
        try:
            return forward(*args, **kwargs)
        finally:
            for mode in modes:
                mode._is_aside = False
                if mode._standing is not None:
                    lay_below(mode)

    return forward_alone


def lies_below(mode: Mode) -> bool:
    """Is this mode on in this thread?"""
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


class Leaving:
    """Lets a mode that nobody needs leave its thread's stack, as soon as torch has put it back there.

    Torch takes a mode off its stack while its handler runs and puts it back after it; the handler's keyword
    arguments are let go of only then, and this object with them, if it is put there as `LEAVING`. Seen on
    2.13.0; should torch change the order, the mode stays until the next boundary, and does nothing.
    """

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave = leave

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._leave()


LEAVING = "layerstep"
"""The name of a keyword that no kernel has."""


@contextlib.contextmanager
def autograd_on() -> Iterator[None]:
    """Inside of a dispatch mode one is below autograd; meanwhile ops are recorded as outside of it.

    Fallback: they are not, and a result that is looked at there says that it needs no gradient.
    """
    guard = getattr(torch._C, "_PreserveDispatchKeyGuard", None)
    keys = getattr(torch._C, "DispatchKey", None)
    if guard is None or keys is None:
        yield
        return
    try:
        with guard():
            for key in (keys.AutogradFunctionality, keys.ADInplaceOrView):
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
            yield
    finally:
        _renew_keys()


def _renew_keys() -> None:
    """Make the dispatch key by which torch asks the mode stack agree with what lies there.

    The guard puts that key back to what it was: a mode that was laid meanwhile would see nothing, nor would
    any that is put on top of it. The first push sets the key, the last pop takes it back.
    """
    probe = TorchDispatchMode()
    before = _stack(probe)
    _pop_all(probe, len(before))
    for each in before or [probe]:
        _push(each)
    if not before:
        _pop_all(probe, 1)
