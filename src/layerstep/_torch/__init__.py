"""Every private torch API in use, each with a self-test at first use and a fallback.

Seen on torch 2.13.0. Where a self-test fails, the fallback named in the docstring is taken.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Iterator
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from layerstep._torch.graphs import (
    at_end_of_backward,
    autograd_count,
    current_node,
    graph_task,
    is_in_backward,
    run_backward,
    will_run,
)
from layerstep._torch.guards import below_everything, modes_off, observation, transforms_off

__all__ = [
    "at_end_of_backward",
    "autograd_count",
    "below_everything",
    "call_frames",
    "called_module",
    "current_node",
    "entered_with_hooks",
    "foreach_norm",
    "foreach_subtract",
    "function_modes",
    "functions_off",
    "functions_on",
    "functorch_inner",
    "graph_task",
    "has_met_wrappers",
    "has_saved_tensor_hooks",
    "hook_tables",
    "hooks_hidden",
    "is_compiled",
    "is_functional",
    "is_in_backward",
    "is_lazy_clone",
    "is_scripted",
    "is_tracing",
    "is_transformed",
    "is_transforming",
    "is_vmapped",
    "is_wrapper",
    "modes_off",
    "module_call_code",
    "observation",
    "own_parameters",
    "restore_stance",
    "run_backward",
    "set_version",
    "take_eager_stance",
    "transforms_off",
    "unwrap",
    "vmap_inner",
    "will_run",
]

module_call_code: CodeType = nn.Module._call_impl.__code__
"""`Module._call_impl` runs once per module call; its frames are the module stack."""


def call_frames(frame: FrameType | None, until: FrameType | None = None) -> Iterator[FrameType]:
    """The frames of running module calls, innermost first, up to the frame `until`.

    Fallback: none is needed. If torch renames the function, this module fails to import
    and the self-test in the suite names the line.
    """
    code = module_call_code
    while frame is not None and frame is not until:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back


def called_module(frame: FrameType) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module that a call frame runs, and what it was called with."""
    names = frame.f_locals
    return names["self"], names.get("args", ()), names.get("kwargs", {})


def entered_with_hooks(frame: FrameType) -> bool:
    """Did this module call take the path that runs hooks?

    A call that began without hooks returns straight from `forward`: a hook added meanwhile
    never fires. Fallback: if the local is renamed this says no, and `finish` arms every module.
    """
    return "inner" in frame.f_locals


def hook_tables(module: nn.Module) -> dict[str, Any]:
    """The tables of forward hooks and pre-hooks of a module, by attribute.

    Fallback: none is found, and a fused encoder layer leaves its kernel while it is tapped.
    """
    return _tables(module, _HOOK_TABLES)


def _tables(module: nn.Module, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: module.__dict__[name] for name in names if name in module.__dict__}


_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_TABLES = ("_backward_hooks", "_backward_pre_hooks")


@contextlib.contextmanager
def hooks_hidden(module: nn.Module) -> Iterator[list[Any]]:
    """No hook on or in the module is called meanwhile; those that are there.

    The tables are swapped, not emptied: a hook that is removed meanwhile stays removed.
    """
    names = _HOOK_TABLES + _BACKWARD_TABLES
    hidden = [(part, _tables(part, names)) for part in module.modules()]
    for part, tables in hidden:
        part.__dict__.update({name: OrderedDict() for name in tables})
    try:
        yield [hook for _, tables in hidden for table in tables.values() for hook in table.values()]
    finally:
        for part, tables in hidden:
            part.__dict__.update(tables)


def functions_on() -> contextlib.AbstractContextManager[Any]:
    """Let function modes see again: at a pause they are off, so that the user's see nothing of ours.

    Fallback: they stay off, and who looks for a function sees none.
    """
    on = getattr(torch._C, "_EnableTorchFunction", contextlib.nullcontext)
    return on()


def functions_off() -> contextlib.AbstractContextManager[Any]:
    """No function mode sees what is called."""
    return torch._C.DisableTorchFunction()


def function_modes() -> list[Any]:
    """The function modes of the user's; a default device is one too, but has to act. Fallback: none."""
    stack = getattr(torch.overrides, "_get_current_function_mode_stack", list)
    return [mode for mode in stack() if type(mode).__name__ != "DeviceContext"]


def foreach_norm(tensors: list[torch.Tensor], order: int, *, dtype: torch.dtype) -> list[torch.Tensor]:
    """The norms of many tensors by one kernel. Fallback: one by one."""
    together = getattr(torch, "_foreach_norm", None)
    if together is None:
        return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]
    return list(together(tensors, order, dtype=dtype))


def foreach_subtract(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    """Subtract from many tensors in place by one kernel. Fallback: one by one."""
    together = getattr(torch, "_foreach_sub_", None)
    if together is not None:
        together(tensors, others)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.sub_(other)


def is_tracing() -> bool:
    """Is the call being compiled, exported, traced or symbolically executed rather than run?"""
    if _tracing_state() is not None or _is_compiling() or _is_exporting():
        return True
    return _fx._is_fx_tracing_flag or (_modes_on() > 0 and _fake_mode_is_active())


_fx: Any = torch.fx._symbolic_trace
if not hasattr(
    _fx, "_is_fx_tracing_flag"
):  # fallback: a module that is symbolically traced runs as any other
    _fx = SimpleNamespace(_is_fx_tracing_flag=False)
_is_compiling, _is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
_tracing_state, _modes_on = torch._C._get_tracing_state, torch._C._len_torch_dispatch_stack


def _fake_mode_is_active() -> bool:
    """Fallback: no; then a stop shows fake tensors, shapes without values."""
    stack = getattr(torch.utils._python_dispatch, "_get_current_dispatch_mode_stack", None)
    return stack is not None and any(type(mode).__name__ == "FakeTensorMode" for mode in stack())


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Put a tensor's count of in-place writes back to what it was.

    Fallback: the count stays; a backward that saved the tensor will then refuse, and say so.
    """
    setter = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
    if setter is not None:
        setter((tensor,), (version,))


def has_saved_tensor_hooks() -> bool:
    """Does somebody (activation checkpointing, say) handle what autograd saves? Fallback: yes."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def is_lazy_clone(tensor: torch.Tensor) -> bool:
    """Does it share memory until written (`torch._lazy_clone`)? Asking for its data would copy it."""
    probe = getattr(torch._C, "_is_cow_tensor", None)
    return bool(probe and probe(tensor))


def is_vmapped(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def is_transformed(tensor: torch.Tensor) -> bool:
    """Is it a value inside vmap, grad or another transform of torch.func?"""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_transforming() -> bool:
    """Does this thread run inside vmap, grad or another transform of torch.func? Fallback: no."""
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def is_functional(tensor: torch.Tensor) -> bool:
    return bool(torch._is_functional_tensor(tensor))


def functorch_inner(tensor: Any) -> Any:
    """The tensor below the wrappers of `torch.func.grad` and `jvp`."""
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def vmap_inner(tensor: Any) -> Any:
    """The tensor with the batch below one `vmap`."""
    return torch._C._functorch.get_unwrapped(tensor)


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
    """Was there any module so far that only wraps another? Those of a model are looked at as it is met."""
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


_scripted: dict[type, bool] = {}


def is_scripted(module: nn.Module) -> bool:
    """A TorchScript module is one call: nothing inside it can be stopped at."""
    kind = type(module)
    if kind not in _scripted:
        _scripted[kind] = issubclass(kind, torch.jit.ScriptModule)
    return _scripted[kind]


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that belong to the path of a module: of a TorchScript module all that are in it."""
    yield from module.named_parameters(recurse=is_scripted(module))


def take_eager_stance() -> Any:
    """Make compiled code run eagerly; the stance that was in force, None where dynamo is not there.

    Hooks added after `torch.compile` never fire in compiled code (measured on 2.13), and only the stance
    `force_eager` wakes them without a recompilation. Importing dynamo costs over a second, so it is left
    alone unless something else has imported it.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return None
    before = getattr(dynamo, "_stance", "default")
    torch.compiler.set_stance("force_eager")
    return before


def restore_stance(before: Any) -> None:
    """Take a stance again that was in force. Fallback: the default one."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if hasattr(dynamo, "_set_stance") and before != "default":
        dynamo._set_stance(before)
    else:
        torch.compiler.set_stance("default")
