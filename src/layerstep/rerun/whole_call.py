"""Rerun a whole call as it was: with the inputs, random streams and buffers of its beginning.

While a catchpoint is armed, every call notes its start, so that must be cheap: it clones the inputs, which
belong to the user and may share memory with numpy, and while training the buffers. After a rerun everything
is as the real call left it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import modes_off, set_version
from layerstep._torch.tensors import size_of, version_of
from layerstep.module_paths.by_module import ByModule
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.side_effects.guard import note_before_change
from layerstep.side_effects.random_streams import Generators, RandomState
from layerstep.side_effects.reachable import Reach
from layerstep.tensors.clones import clone_of
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["CallStart", "generators_of", "note_start", "rerunning"]

INPUT_BYTES = 256 << 20
"""Larger inputs are kept, not copied; a rerun then gets them as the call has left them."""


@dataclass(slots=True, eq=False)
class CallStart:
    """The state at the beginning of one call of a module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    forward: int
    streams: RandomState
    generators: Generators
    buffers: list[tuple[Tensor, Tensor]]
    grad: bool
    inference: bool
    autocast: list[tuple[str, torch.dtype]]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A fresh copy of its arguments, because the rerun may write to them."""
        copies = Copies(CallProgress.AFTER, length_of(self.args, self.kwargs))
        args, kwargs = copies.of(self.args), copies.of(self.kwargs)
        for before, after in copies.tensors():
            if before.requires_grad:
                after.requires_grad_()
        return args, kwargs


def note_start(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    forward: int,
    inside: list[nn.Module],
) -> CallStart:
    """Note the state at the beginning of a call; `inside` are the modules of the model."""
    with observing():
        copies = Copies(CallProgress.AFTER, length_of(args, kwargs))
        size = sum(map(size_of, tensors_of((args, kwargs))))
        if size <= INPUT_BYTES:
            args, kwargs = copies.of(args), copies.of(kwargs)
        buffers = _copies_of_buffers(inside) if module.training else []
    for before, after in copies.tensors():
        if before.requires_grad and after.is_floating_point():
            after.requires_grad_()
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return CallStart(
        module,
        args,
        kwargs,
        forward=forward,
        streams=RandomState(),
        generators=generators_of(module),
        buffers=buffers,
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        autocast=[(device, torch.get_autocast_dtype(device)) for device in on],
    )


_known: ByModule[list[Any]] = ByModule()


def generators_of(module: nn.Module) -> Generators:
    """The random generators that the module holds, as they are now. We search for them once per module."""
    known = _known.get(module)
    if known is None:
        reach = Reach(tensors=False)
        reach.add_module("", module)
        known = _known.put(module, reach.generators)
    found = Generators()
    for generator in known:
        found.add(generator)
    return found


def _copies_of_buffers(modules: list[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    buffers = {id(b): b for module in modules for b in module._buffers.values() if b is not None}
    return [(buffer, clone_of(buffer)) for buffer in buffers.values() if not buffer.is_meta]


@contextlib.contextmanager
def rerunning(session: Session, start: CallStart) -> Iterator[None]:
    """Restore the state at the beginning of that call for this block; afterwards put the present state back.

    No hook of the module or its parts is called, no point stops, and what it prints is not shown.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.installation.held())
        stack.enter_context(modes_off())
        note_before_change(start.module)
        stack.enter_context(_buffers_at_start(start))
        stack.enter_context(leaving_no_trace(session, start.module))
        stack.callback(RandomState().restore)  # undo our own restore, even if other threads have drawn
        stack.enter_context(torch.inference_mode(start.inference))
        stack.enter_context(torch.set_grad_enabled(start.grad))
        for device in ("cpu", "cuda"):
            dtype = dict(start.autocast).get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
                )
        start.streams.restore()
        start.generators.rewind()
        yield


@contextlib.contextmanager
def _buffers_at_start(start: CallStart) -> Iterator[None]:
    """Write through `.data` and put back the count of writes, because autograd may have saved a buffer."""
    with observing():
        now = [(buffer, clone_of(buffer), version_of(buffer)) for buffer, _ in start.buffers]
        for buffer, value in start.buffers:
            buffer.data.copy_(value)
    try:
        yield
    finally:
        with observing():
            for buffer, value, version in now:
                buffer.data.copy_(value)
                set_version(buffer, version)
