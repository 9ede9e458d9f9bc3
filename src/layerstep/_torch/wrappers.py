"""Modules around other modules, and other makes of module: DDP, DataParallel, torch.compile, TorchScript.

Seen on torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = [
    "has_met_wrappers",
    "is_compiled",
    "is_module_call",
    "is_replica",
    "is_scripted",
    "is_wrapper",
    "own_parameters",
    "unwrap",
]

_WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
}
"""Modules that only wrap another: their own segment is not part of a path."""


_wrapped_names: dict[type, str | None] = {}
_met: set[str | None] = set()


def _wrapped_name(kind: type) -> str | None:
    if kind not in _wrapped_names:
        bases = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
        _wrapped_names[kind] = name = next((_WRAPPERS[base] for base in bases if base in _WRAPPERS), None)
        _met.update({name} - {None})
    return _wrapped_names[kind]


def has_met_wrappers() -> bool:
    """Has any model so far had a module that only wraps another?"""
    return bool(_met)


def is_wrapper(module: nn.Module) -> bool:
    """Is this DDP, DataParallel or torch.compile's wrapper around the real module?"""
    return _wrapped_name(type(module)) is not None


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside DDP's `module.` and compile's `_orig_mod.`."""
    kind = type(module)
    name = _wrapped_names[kind] if kind in _wrapped_names else _wrapped_name(kind)
    if name is None:
        return module
    inner = module._modules.get(name)
    return unwrap(inner) if inner is not None else module


def is_compiled(module: nn.Module) -> bool:
    """Is this module called through torch.compile, by wrapper or by `module.compile()`?"""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    return _wrapped_name(type(module)) == "_orig_mod"


def is_replica(module: nn.Module) -> bool:
    """Is this one of the copies of a module that DataParallel makes for each forward? Fallback: no."""
    return bool(getattr(module, "_is_replica", False))


def is_module_call(function: Any) -> bool:
    """Is this the call of a module, as `module.compile()` hands it to `torch.compile`?"""
    return bool(function == getattr(getattr(function, "__self__", None), "_call_impl", None))


_scripted: dict[type, bool] = {}


def is_scripted(module: nn.Module) -> bool:
    """Is this a TorchScript module? Its call is one piece: the run cannot stop in it."""
    kind = type(module)
    if kind not in _scripted:
        _scripted[kind] = issubclass(kind, torch.jit.ScriptModule)
    return _scripted[kind]


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a module without its children; of a TorchScript module also those of its parts."""
    yield from module.named_parameters(recurse=is_scripted(module))
