"""Run a whole call again as it was: its inputs, random streams and buffers are those of its beginning.

Taken at the beginning of every call while a catchpoint is armed, so it must be cheap: inputs are cloned (they
belong to the user, and numpy may share them), buffers only while training, nothing else is copied. Afterwards
everything is as the real call left it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import modes_off, set_version
from layerstep._torch.tensors import size_of, version_of
from layerstep.engine.guard import observing
from layerstep.engine.random_streams import Generators, RandomState
from layerstep.engine.reachable import Reach
from layerstep.rerun.copies import Copies, clone_of
from layerstep.rerun.kv_caches import Moment
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.tensors.containers import tensors_of

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Snapshot", "replaying", "take"]

INPUT_BYTES = 256 << 20
"""Inputs larger than this are held, not copied; a second run is then on what the call has left of them."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """The beginning of one call of a module."""

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
        """Once more what it was called with: a copy, because the call may write to it."""
        copies = Copies(Moment.AFTER, length_of(self.args, self.kwargs))
        args, kwargs = copies.of(self.args), copies.of(self.kwargs)
        for before, after in copies.tensors():
            if before.requires_grad:
                after.requires_grad_()
        return args, kwargs


def take(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    forward: int,
    inside: list[nn.Module],
) -> Snapshot:
    """The state at the beginning of a call; `inside` are the modules of the model."""
    with observing():
        copies = Copies(Moment.AFTER, length_of(args, kwargs))
        size = sum(map(size_of, tensors_of((args, kwargs))))
        if size <= INPUT_BYTES:
            args, kwargs = copies.of(args), copies.of(kwargs)
        buffers = _copies_of_buffers(inside) if module.training else []
    for before, after in copies.tensors():
        if before.requires_grad and after.is_floating_point():
            after.requires_grad_()
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return Snapshot(
        module,
        args,
        kwargs,
        forward=forward,
        streams=RandomState(),
        generators=_generators_of(module),
        buffers=buffers,
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        autocast=[(device, torch.get_autocast_dtype(device)) for device in on],
    )


_known: weakref.WeakKeyDictionary[nn.Module, list[Any]] = weakref.WeakKeyDictionary()


def _generators_of(module: nn.Module) -> Generators:
    """Those of the module's own, as they are now. They are looked for once: this is done at each call."""
    if module not in _known:
        reach = Reach(tensors=False)
        reach.add_module("", module)
        _known[module] = reach.generators
    found = Generators()
    for generator in _known[module]:
        found.add(generator)
    return found


def _copies_of_buffers(modules: list[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    buffers = {id(b): b for module in modules for b in module._buffers.values() if b is not None}
    return [(buffer, clone_of(buffer)) for buffer in buffers.values() if not buffer.is_meta]


@contextlib.contextmanager
def replaying(session: Session, snapshot: Snapshot) -> Iterator[None]:
    """Meanwhile the world is as at the beginning of that call; afterwards it is as it was before this block.

    No hook on or in the module is called, no point stops, what it prints is not shown.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.arming.held())
        stack.enter_context(modes_off())
        stack.enter_context(_buffers_at_start(snapshot))
        stack.enter_context(leaving_no_trace(session, snapshot.module))
        stack.callback(RandomState().restore)  # we have turned them back, whoever else has drawn
        stack.enter_context(torch.inference_mode(snapshot.inference))
        stack.enter_context(torch.set_grad_enabled(snapshot.grad))
        for device in ("cpu", "cuda"):
            dtype = dict(snapshot.autocast).get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
                )
        snapshot.streams.restore()
        snapshot.generators.rewind()
        yield


@contextlib.contextmanager
def _buffers_at_start(snapshot: Snapshot) -> Iterator[None]:
    """Through `.data` and with the old count of writes: autograd may have saved a buffer."""
    with observing():
        now = [(buffer, clone_of(buffer), version_of(buffer)) for buffer, _ in snapshot.buffers]
        for buffer, value in snapshot.buffers:
            buffer.data.copy_(value)
    try:
        yield
    finally:
        with observing():
            for buffer, value, version in now:
                buffer.data.copy_(value)
                set_version(buffer, version)
