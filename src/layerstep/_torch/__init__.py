"""Every private torch API in use, each with a self-test at first use and a fallback.

Seen on torch 2.13.0. Where a self-test fails, the fallback named in the docstring is taken.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from layerstep._torch.graphs import (
    NO_BACKWARD,
    at_end_of_backward,
    autograd_count,
    current_node,
    graph_task,
    is_in_backward,
    node_number,
    run_backward,
    will_run,
)
from layerstep._torch.guards import below_everything, modes_off, observation
from layerstep._torch.wrappers import (
    has_met_wrappers,
    is_compiled,
    is_module_call,
    is_replica,
    is_scripted,
    is_wrapper,
    own_parameters,
    unwrap,
)

__all__ = [
    "NO_BACKWARD",
    "at_end_of_backward",
    "autograd_count",
    "below_everything",
    "call_frames",
    "called_module",
    "current_node",
    "drop_backward_hooks",
    "drop_hooks",
    "entered_with_hooks",
    "foreach_norm",
    "foreach_subtract",
    "function_modes",
    "function_modes_off",
    "function_modes_on",
    "functorch_inner",
    "graph_task",
    "has_met_wrappers",
    "has_saved_tensor_hooks",
    "hook_tables",
    "hooks_hidden",
    "is_compiled",
    "is_functional",
    "is_in_backward",
    "is_in_jvp",
    "is_lazy_clone",
    "is_module_call",
    "is_replica",
    "is_scripted",
    "is_tracing",
    "is_transformed",
    "is_transforming",
    "is_vmapped",
    "is_wrapper",
    "jit_trace",
    "modes_off",
    "module_call_code",
    "module_file",
    "node_number",
    "observation",
    "own_parameters",
    "restore_stance",
    "run_backward",
    "set_version",
    "take_eager_stance",
    "unwrap",
    "vmap_inner",
    "will_run",
]

module_call_code: CodeType = nn.Module._call_impl.__code__
"""`Module._call_impl` runs once per module call; its frames are the module stack."""
module_file = module_call_code.co_filename
"""The file of torch that defines `nn.Module`."""
jit_trace: Callable[[], Any] = torch._C._get_tracing_state
"""The trace that `torch.jit.trace` records in this thread; None where it records none."""


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
    """Meanwhile no hook of the module or its parts is called. Gives these hooks.

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


def drop_backward_hooks(module: nn.Module) -> None:
    """Take every backward hook off a copy of a model."""
    for part in module.modules():
        for table in _tables(part, _BACKWARD_TABLES).values():
            table.clear()


def drop_hooks(module: nn.Module) -> None:
    """Take every hook off a copy of a model, but for those by which torch computes a weight.

    `torch.nn.utils.weight_norm`, `spectral_norm` and pruning make the weight in a hook before the forward.
    """
    for part in module.modules():
        for table in _tables(part, _HOOK_TABLES + _BACKWARD_TABLES).values():
            for key, hook in list(table.items()):
                if not type(hook).__module__.startswith("torch.nn.utils."):
                    del table[key]


@contextlib.contextmanager
def function_modes_on() -> Iterator[None]:
    """Turn function modes on again, which are off at a pause. The user's see nothing of ours meanwhile.

    Fallback: they stay off, and a mode that looks for functions sees none.
    """
    on = getattr(torch._C, "_EnableTorchFunction", contextlib.nullcontext)
    users = function_modes()
    before = torch.overrides._get_current_function_mode_stack() if users else []
    for _ in before:
        torch._C._pop_torch_function_stack()
    kept = [mode for mode in before if mode not in users]
    for mode in kept:
        torch._C._push_on_torch_function_stack(mode)
    try:
        with on():
            yield
    finally:
        for _ in kept:
            torch._C._pop_torch_function_stack()
        for mode in before:
            torch._C._push_on_torch_function_stack(mode)


def function_modes_off() -> contextlib.AbstractContextManager[Any]:
    """Turn function modes off: none sees what is called."""
    return torch._C.DisableTorchFunction()


def function_modes() -> list[Any]:
    """The user's function modes, without a default device: that is a mode too, but must act.

    Fallback: none.
    """
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
    if _compiler._is_compiling_flag or _compiler._is_exporting_flag or _fx._is_fx_tracing_flag:
        return True
    return _is_jit_tracing() or (_modes_on() > 0 and _fake_mode_is_active())


_fx: Any = torch.fx._symbolic_trace
if not hasattr(
    _fx, "_is_fx_tracing_flag"
):  # fallback: a module that is symbolically traced runs as any other
    _fx = SimpleNamespace(_is_fx_tracing_flag=False)


class _AskedCompiler:
    """Fallback where torch keeps no such flags: its functions are asked, which takes twice as long."""

    @property
    def _is_compiling_flag(self) -> bool:
        return torch.compiler.is_compiling()

    @property
    def _is_exporting_flag(self) -> bool:
        return torch.compiler.is_exporting()


_compiler: Any = torch.compiler
if not (hasattr(_compiler, "_is_compiling_flag") and hasattr(_compiler, "_is_exporting_flag")):
    _compiler = _AskedCompiler()
_is_jit_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", lambda: jit_trace() is not None)
_modes_on = torch._C._len_torch_dispatch_stack


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
    """Do hooks, as of activation checkpointing, handle what autograd saves? Fallback: yes."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def is_lazy_clone(tensor: torch.Tensor) -> bool:
    """Does it share memory until written (`torch._lazy_clone`)? Asking for its data would copy it."""
    probe = getattr(torch._C, "_is_cow_tensor", None)
    return bool(probe and probe(tensor))


def is_vmapped(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def is_transformed(tensor: torch.Tensor) -> bool:
    """Is it a value in vmap, grad or another transform of torch.func?"""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_transforming() -> bool:
    """Does this thread run vmap, grad or another transform of torch.func? Fallback: no."""
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def is_in_jvp() -> bool:
    """Does this thread run `torch.func.jvp`? A rerun in it ends in a segmentation fault.

    Told from the frames: at a kernel, torch has taken the transforms off its stack. Fallback: no, if torch
    renames the function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_jvp_with_argnums" and "_functorch" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


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


def take_eager_stance() -> Any:
    """Make compiled code run eagerly. Gives the stance that was in force, None where dynamo is not loaded.

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
    """Put back the stance that was in force. Fallback: the default one."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if hasattr(dynamo, "_set_stance") and before != "default":
        dynamo._set_stance(before)
    else:
        torch.compiler.set_stance("default")
