"""Run a kernel under one of our dispatch modes as it runs without the mode. Seen on torch 2.13.0.

In the handler of a mode torch switches off every dispatch key above it: autocast, the views of inference
mode, conjugate and negative bits. A kernel that calls other operations then calls other ones than in the bare
run: a fused encoder layer under autocast computes in float32, `linear` in inference mode folds its input
differently, and the writes of an optimizer that works on lists of tensors are not counted. So we switch those
keys on again for the kernel, as the bare run has them.

Where the source has a number that torch wraps in a tensor, the handler gets the number. Most operators refuse
a number there: `view`, by which TorchScript prints the constants of a graph, raises. They get the tensor
again.

A handler cannot read whether autocast is on, because that is one of the keys. So we note it when a mode is
pushed, and follow `torch.set_autocast_enabled`, which every `torch.autocast` calls, until the mode is popped.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from layerstep._torch.dynamo import keep_dynamo_out

__all__ = ["follow_autocast", "run_kernel", "unfollow_autocast"]


class _ThreadState(threading.local):
    """The devices for which autocast is on in this thread, and our modes on its stack."""

    def __init__(self) -> None:
        self.on: set[str] = set()
        self.modes: set[int] = set()


_thread = _ThreadState()
_pushed: set[tuple[int, int]] = set()
"""Our modes on the stacks of all threads. After the last one torch gets its own function back."""
_lock = threading.Lock()
_torch_set: Any = getattr(torch, "set_autocast_enabled", None)
_keys: Any = getattr(torch._C, "DispatchKey", None)
_guard: Any = getattr(torch._C, "_PreserveDispatchKeyGuard", None)
_exclude: Any = getattr(torch._C, "_dispatch_tls_set_dispatch_key_excluded", None)
_has_kernel: Any = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
_CAN = None not in (_torch_set, _keys, _guard, _exclude, _has_kernel)
"""Fallback: a kernel runs as torch runs it under a mode."""

_AUTOCAST = {
    device: getattr(_keys, name)
    for device, name in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"), ("xpu", "AutocastXPU"))
    if hasattr(_keys, name)
}
_BITS = tuple(
    getattr(_keys, name) for name in ("Conjugate", "Negative", "ZeroTensor") if hasattr(_keys, name)
)
_FUSED = frozenset(
    ["aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention", "aten::_trilinear"]
)
"""Kernels that call operations which autocast knows, and which no other operation calls."""


def follow_autocast(mode: object) -> None:
    """A mode is pushed in this thread: know from now on whether autocast is on."""
    if not _CAN:
        return
    if not _thread.modes:
        _thread.on = {device for device in _AUTOCAST if torch.is_autocast_enabled(device)}
    _thread.modes.add(id(mode))
    with _lock:
        _pushed.add((threading.get_ident(), id(mode)))
        if torch.set_autocast_enabled is _torch_set:
            torch.set_autocast_enabled = _set_autocast_enabled


def unfollow_autocast(mode: object) -> None:
    """A mode was popped from the stack of this thread."""
    _thread.modes.discard(id(mode))
    with _lock:
        _pushed.discard((threading.get_ident(), id(mode)))
        alive = {thread.ident for thread in threading.enumerate()}
        _pushed.difference_update([each for each in _pushed if each[0] not in alive])
        if not _pushed and torch.set_autocast_enabled is _set_autocast_enabled:
            torch.set_autocast_enabled = _torch_set


def _set_autocast_enabled(*args: Any, **kwargs: Any) -> Any:
    """Call torch's own, and note the arguments: (device, enabled), or (enabled) for CUDA."""
    result = _torch_set(*args, **kwargs)
    device, enabled = args if len(args) == 2 else ("cuda", *args) if len(args) == 1 else ("", False)
    (_thread.on.add if enabled else _thread.on.discard)(str(device))
    return result


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The facts about an operator that decide which keys it runs under."""

    follows_views: bool
    """What it calls in inference mode still follows views. A kernel of its own for that switches it off."""
    counts_inside: bool
    """It writes in place, and what it calls counts the writes: `_foreach_add_` calls `add_` for each."""
    is_fused: bool
    casts: frozenset[str]
    """The devices on which autocast has a kernel for it. That kernel has run and switched itself off."""


_known: dict[Any, _Kernel | None] = {}


def _learn(func: Any) -> _Kernel | None:
    try:
        name = func.name()
        follows_views = not _has_kernel(name, "ADInplaceOrView")
        found = _Kernel(
            follows_views,
            follows_views and name.partition(".")[0].endswith("_"),
            name in _FUSED,
            frozenset(each for each in _AUTOCAST if _has_kernel(name, f"Autocast{each.upper()}")),
        )
    except (AttributeError, RuntimeError):  # an operator of higher order
        found = None
    _known[func] = found
    return found


def run_kernel(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a kernel in the handler of one of our modes as it runs in the bare program."""
    kernel = _known[func] if func in _known else _learn(func) if _CAN else None
    if kernel is None or torch._C._len_torch_dispatch_stack():  # another of our modes comes below
        return _run(func, args, kwargs)
    with _guard():
        for key in (*_BITS, *_above(kernel)):
            _exclude(key, False)
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        given = _with_tensors_for_numbers(func, args)
        if given is None:
            raise
    return func(*given, **kwargs)


_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _with_tensors_for_numbers(func: Any, args: Any) -> list[Any] | None:
    """The arguments with a tensor for each number that the operator refuses; None if there is none.

    Torch rejects such a call before it runs anything. Fallback: it stays rejected.
    """
    takes_numbers: Any = getattr(torch._C, "_should_allow_numbers_as_tensors", None)
    schema = getattr(func, "_schema", None)
    if takes_numbers is None or schema is None or takes_numbers(schema.name.rpartition("::")[2]):
        return None
    places = [
        type(value) in _DTYPES and str(wanted.type) == "Tensor"
        for value, wanted in zip(args, schema.arguments, strict=False)
    ]
    if not any(places):
        return None
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return [
            torch.full((), value, dtype=_DTYPES[type(value)]) if is_number else value
            for value, is_number in zip(args, places, strict=True)
        ]


def _above(kernel: _Kernel) -> list[Any]:
    """The keys that are on here in the bare run. In the handler of a user's mode none of them is."""
    in_inference = torch.is_inference_mode_enabled()
    found = [_AUTOCAST[device] for device in _thread.on - kernel.casts if device in _AUTOCAST]
    found = found if in_inference or kernel.is_fused else []
    if kernel.counts_inside or (in_inference and kernel.follows_views):
        found.append(_keys.ADInplaceOrView)
    return [] if found and _is_in_another_mode(sys._getframe(1)) else found


def _is_in_another_mode(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__" and not _is_ours(frame):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("layerstep.")


# They are called in handlers, where dynamo may look at every new frame.
keep_dynamo_out(run_kernel, callees=False)
keep_dynamo_out(_run, callees=False)
keep_dynamo_out(_learn, callees=True)
keep_dynamo_out(_above, callees=True)
