"""Torch's stacks of function and dispatch modes: to lie below all others, and to see normally from inside.

A mode that stays on beyond a `with` block must lie at the bottom of its stack: the user's own blocks pop
whatever is on top. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LEAVING", "Leaving", "autograd_on", "functions_out", "lay_below", "lies_below", "take_out"]

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


@contextlib.contextmanager
def functions_out(kind: type[TorchFunctionMode]) -> Iterator[None]:
    """Function modes of that class are out of this thread's stack meanwhile."""
    stack: Any = getattr(torch.overrides, "_get_current_function_mode_stack", tuple)
    modes = [mode for mode in stack() if isinstance(mode, kind) and take_out(mode)]
    try:
        yield
    finally:
        for mode in modes:
            lay_below(mode)


def lies_below(mode: Mode) -> bool:
    """Is this mode on in this thread?"""
    try:
        return any(each is mode for each in _stack(mode))
    except AttributeError:
        return False


def _stack(mode: Mode) -> list[Any]:
    if isinstance(mode, TorchFunctionMode):
        return list(torch.overrides._get_current_function_mode_stack())
    return list(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


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
