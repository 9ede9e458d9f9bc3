"""A stand-in for accelerators, registered with torch: "toy:0" and "toy:1", on which models really run.

A tensor on it keeps its values on the processor and says that it is elsewhere, so autograd has a thread for
it and optimizers step it. Its time is a number: each kernel adds what `WORK` says to the clock of its device,
and the host goes on at once. So every time that an event tells can be worked out by hand.

`register(library)` has its events made by `guard.cpp`, as those of a device in C++ are; `register(None)` by
the `Event` of the device's module in Python, and `register(None, with_event=False)` leaves it without.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

WORK = {"addmm": 5.0, "mm": 7.0, "relu": 1.0, "threshold_backward": 2.0, "sum": 4.0}
"""Milliseconds; of other kernels none."""


class _PythonClocks:
    """The clocks of two devices, and how often somebody waited for one."""

    def __init__(self) -> None:
        self.milliseconds = [0.0, 0.0]
        self.waited = 0

    def work(self, device: int, spent: float) -> None:
        self.milliseconds[device] += spent

    def waits(self) -> int:
        return self.waited


class _GuardClocks:
    """Those of `guard.cpp`."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.work, self.waits = library.toy_work, library.toy_waits
        self.work.argtypes = [ctypes.c_int, ctypes.c_double]


clocks: Any = None


class Event:
    """What `torch.get_device_module("toy").Event` is, if there is one."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = clocks.milliseconds[0]

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        clocks.waited += 1

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


class _Module(_DummyBackendModule):
    def device_count(self) -> int:
        return 2


def register(library: str | None, *, with_event: bool = True) -> None:
    """Once in a process."""
    global clocks
    module = _Module()
    if library is None and with_event:
        module.Event = Event  # type: ignore[attr-defined]
    _setup_privateuseone_for_python_backend("toy", backend_module=module)
    clocks = _PythonClocks() if library is None else _GuardClocks(library)


class ToyTensor(torch.Tensor):
    """Its values are in `raw`, on the processor."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> ToyTensor:
        made: ToyTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), dtype=raw.dtype, device=device
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        flat = [x for x in torch.utils._pytree.tree_leaves((args, given)) if isinstance(x, ToyTensor)]
        device = torch.device(given.get("device") or flat[0].device)
        if "device" in given:
            given["device"] = "cpu"
        if device.type == "toy":
            clocks.work(device.index or 0, WORK.get(func._overloadpacket.__name__, 0.0))
        out = func(*tree_map(_raw, args), **tree_map(_raw, given))
        if device.type != "toy":
            return out
        if func._schema.is_mutable:
            return args[0]
        return tree_map(lambda x: ToyTensor(x, device) if isinstance(x, Tensor) else x, out)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, ToyTensor) else value


def on_toy(value: Tensor, index: int = 0) -> ToyTensor:
    return ToyTensor(value.detach().clone(), torch.device("toy", index))


def move(module: nn.Module, index: int = 0) -> nn.Module:
    """All parameters of a module, as `.to("toy:0")` would."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[name] = nn.Parameter(on_toy(parameter, index))
    return module
