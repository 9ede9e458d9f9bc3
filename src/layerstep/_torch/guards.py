"""Guards: while one is on, no mode of the program and no transform sees what the debugger computes.

They are entered at each event and at each look at a tensor, so they are plain classes: a generator with an
`ExitStack` in it takes 6.6 µs, one of these below 1. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import torch

__all__ = ["below_everything", "functions_off", "is_aside", "modes_off", "no_grad_unseen", "observation"]

_functions_off: Any = torch._C.DisableTorchFunction
_modes_on = torch._C._len_torch_dispatch_stack


@functools.cache
def _can_leave_modes() -> bool:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[object] = []

    class Probe(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

        @classmethod
        def _should_skip_dynamo(cls) -> bool:  # otherwise its first op imports torch._dynamo: 1.2 s
            return False

    try:
        from torch.utils._python_dispatch import _disable_current_modes

        with _functions_off(), _disable_current_modes():  # no mode of the user's must see the self-test
            one = torch.ones((), device="cpu")
            with Probe(), _disable_current_modes():  # type: ignore[no-untyped-call]
                one.add(1)
    except Exception:
        return False
    return not seen


def modes_off() -> contextlib.AbstractContextManager[Any]:
    """Leave the user's dispatch and function modes, so that they do not see our ops.

    Fallback: the modes stay on and count what the debugger computes.
    """
    if _modes_on() == 0 or not _can_leave_modes():
        return _functions_off()  # type: ignore[no-any-return]
    from torch.utils._python_dispatch import _disable_current_modes

    stack = contextlib.ExitStack()
    stack.enter_context(_functions_off())
    _aside.modes.append(stack.enter_context(_disable_current_modes()))
    stack.callback(_aside.modes.pop)
    return stack


class _Aside(threading.local):
    def __init__(self) -> None:
        self.modes: list[Any] = []
        """For each such block of this thread, the dispatch modes that lay there before it."""


_aside = _Aside()


def is_aside(mode: object) -> bool:
    """Is this mode out of the stack for the time of such a block, after which torch puts it back?"""
    return any(each is mode for modes in _aside.modes for each in modes or ())


_transforms_off: Any = getattr(torch._C, "_DisableFuncTorch", contextlib.nullcontext)
_kernels_off: Any = getattr(torch._C, "_DisableTorchDispatch", None)
_may_transform: Any = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


class _Guard:
    """Enters guards of torch, then turns gradients off, which a function mode would see before them."""

    __slots__ = ("_grad", "_guards")

    def __init__(self, guards: list[Any]) -> None:
        self._guards = guards
        self._grad = False

    def __enter__(self) -> None:
        for guard in self._guards:
            guard.__enter__()
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self._grad)
        for guard in reversed(self._guards):
            guard.__exit__(*error)


class _NoGrad:
    """Turns gradients off, and on again, where a function mode would see it."""

    __slots__ = ("_grad",)

    def __init__(self) -> None:
        self._grad = False

    def __enter__(self) -> None:
        with _functions_off():
            self._grad = torch.is_grad_enabled()
            torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        with _functions_off():
            torch._C._set_grad_enabled(self._grad)


def no_grad_unseen() -> contextlib.AbstractContextManager[None]:
    """`torch.no_grad()`, which no function mode of the program sees."""
    return _NoGrad()


def functions_off() -> contextlib.AbstractContextManager[Any]:
    """No function mode and no subclass of the program sees what we ask a tensor. Costs 0.3 µs."""
    return _functions_off()  # type: ignore[no-any-return]


def below_everything() -> contextlib.AbstractContextManager[None]:
    """No gradient, no function or dispatch mode, no functorch level: plain kernels only.

    Fallback: a switch that torch has lost is left out; then a mode may see the debugger read.
    """
    guards = [_functions_off()]
    if _kernels_off is not None:
        guards.append(_kernels_off())
    if _may_transform():
        guards.append(_transforms_off())
    return _Guard(guards)


def observation() -> contextlib.AbstractContextManager[None]:
    """No gradient, no mode of the program, no transform of torch.func; a mode that is put on later works."""
    guards = [modes_off()]
    if _may_transform():
        guards.append(_transforms_off())
    return _Guard(guards)
