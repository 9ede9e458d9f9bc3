"""Hooks for one block: in reruns, on copies of a model, and while a line at the prompt runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from layerstep._torch import call_frames, called_module
from layerstep.process.frames import forget_locals

__all__ = [
    "editing_calls",
    "replacing_forward",
    "watching_both_ends",
    "watching_calls",
    "watching_copy",
    "watching_every_call",
    "watching_output",
    "watching_outputs",
    "watching_parts",
]


@contextlib.contextmanager
def replacing_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run another forward meanwhile: a copy that the program does not call, or an edited one."""
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)


@contextlib.contextmanager
def _removing(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Take these hooks off at the end of the block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def watching_copy(model: nn.Module, left: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Report each call in a copy of a model when it ends: the path, the arguments, the output."""

    def hook_of(path: str) -> Callable[..., None]:
        return lambda module, args, kwargs, output: left(path, (args, kwargs), output)

    handles = [
        part.register_forward_hook(hook_of(path), with_kwargs=True) for path, part in model.named_modules()
    ]
    with _removing(handles):
        yield


@contextlib.contextmanager
def watching_parts(
    model: nn.Module,
    entered: Callable[[str, nn.Module, Any], None],
    left: Callable[[str, nn.Module, Any], Any],
) -> Iterator[None]:
    """Report each call of a model and its parts: the path and the arguments, then the output.

    For reruns, where the program's hooks are hidden. What `left` returns, unless it is None, takes the
    place of the output.
    """

    def before(path: str) -> Callable[..., None]:
        return lambda module, args, kwargs: entered(path, module, (args, kwargs))

    def after(path: str) -> Callable[..., Any]:
        return lambda module, args, output: left(path, module, output)

    handles = []
    for path, part in model.named_modules():
        # Called through the class: a ScriptModule refuses its own register methods.
        handles.append(nn.Module.register_forward_pre_hook(part, before(path), with_kwargs=True))
        handles.append(nn.Module.register_forward_hook(part, after(path)))
    with _removing(handles):
        yield


@contextlib.contextmanager
def watching_calls(called: Callable[[nn.Module], None]) -> Iterator[None]:
    """Report each module that is called meanwhile, before it runs; for expressions at the prompt."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    def hook(module: nn.Module, args: Any) -> None:
        called(module)

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def watching_outputs(seen: Callable[[nn.Module, Any], None]) -> Iterator[None]:
    """Report each module that returns meanwhile, and what it returns; also where hooks are hidden."""
    from torch.nn.modules.module import register_module_forward_hook

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        seen(module, output)

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def editing_calls(
    modules: Mapping[nn.Module, tuple[Callable[..., Any] | None, Callable[..., Any] | None]],
) -> Iterator[None]:
    """Let functions replace what these modules are given and return meanwhile, in a rerun without hooks."""
    handles = []
    for module, (enter, leave) in modules.items():
        if enter is not None:
            handles.append(nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True))
        if leave is not None:
            handles.append(nn.Module.register_forward_hook(module, leave, with_kwargs=True))
    with _removing(handles):
        yield


@contextlib.contextmanager
def watching_every_call(ended: Callable[[nn.Module, Any, Any, Any], None]) -> Iterator[None]:
    """Report each call of a module in this thread when it ends: arguments and output; hidden hooks or not.

    Keyword arguments are read from the frame of the call. Torch 2.13 does not forget a global hook that was
    registered to be given them, and `torch.compile` then warns of hooks.
    """
    from torch.nn.modules.module import register_module_forward_hook

    thread = get_ident()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if get_ident() == thread:
            call = next(call_frames(sys._getframe(1)))
            kwargs = called_module(call)[2]
            forget_locals(call)
            ended(module, args, kwargs, output)

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def watching_both_ends(
    entered: Callable[[nn.Module, nn.Module | None, Any, Any], None],
    left: Callable[[nn.Module, Any], Any],
) -> Iterator[None]:
    """Report each call of a module in this thread: the module, its caller and arguments, then the output.

    For reruns, where other hooks are hidden. What `left` returns, unless it is None, takes the place of the
    output. Modules that are not in the model are reported, too.
    """
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    thread = get_ident()

    def before(module: nn.Module, args: Any) -> None:
        if get_ident() == thread:
            calls = call_frames(sys._getframe(1))
            call = next(calls)
            kwargs = called_module(call)[2]
            forget_locals(call)
            above = next(calls, None)
            caller = called_module(above)[0] if above is not None else None
            if above is not None:
                forget_locals(above)
            entered(module, caller, args, kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        return left(module, output) if get_ident() == thread else None

    handles = (register_module_forward_pre_hook(before), register_module_forward_hook(after))
    with _removing(handles):
        yield


@contextlib.contextmanager
def watching_output(module: nn.Module, seen: Callable[[Any], None]) -> Iterator[None]:
    """Report what one module returns meanwhile."""
    with watching_outputs(lambda called, output: seen(output) if called is module else None):
        yield
