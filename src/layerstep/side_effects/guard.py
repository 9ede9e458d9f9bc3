"""Runs what the user types so that the run does not notice.

Random streams and the buffers of called modules are put back; what a line changed on purpose is named.
Our own arithmetic runs under `tensors.observing`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerstep._torch import has_saved_tensor_hooks, set_version
from layerstep._torch.process_state import parametrizations_kept
from layerstep._torch.tensors import is_torch, version_of
from layerstep.hooks.temporary import watching_calls
from layerstep.module_paths.models import Models
from layerstep.process.interrupts import not_now
from layerstep.side_effects.random_streams import Generators, OtherThreads, RandomState
from layerstep.side_effects.reachable import Reach
from layerstep.tensors.observing import observing

__all__ = ["Evaluation", "Outcome", "note_before_change", "own_saved_tensors", "state_of", "undisturbed"]

_Versions = dict[str, tuple[int, int]]


class Evaluation:
    """An evaluation of ours, as a context. Meanwhile the taps of this thread are silent.

    `threads` are the ids of those that are in one. Empty, as it is at most calls, it is asked in no time.
    """

    __slots__ = ("_is_outermost", "_threads")

    def __init__(self, threads: set[int]) -> None:
        self._threads = threads
        self._is_outermost = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._is_outermost = me not in self._threads
        self._threads.add(me)

    def __exit__(self, *error: object) -> None:
        if self._is_outermost:  # also where Ctrl-C has cut off the end of an inner one
            self._threads.discard(threading.get_ident())


@dataclass(slots=True)
class Outcome:
    """What a line did to the run."""

    restored: list[str] = field(default_factory=list)
    """Put back: random streams, buffers of modules that the line called."""
    changed: list[str] = field(default_factory=list)
    """Left as the line made it: parameters, buffers, gradients."""
    unsure: list[str] = field(default_factory=list)
    """Random streams that moved while other threads ran, which may have drawn: not put back."""
    unchecked: list[str] = field(default_factory=list)
    """What it may have changed unseen."""

    @property
    def is_worth_telling(self) -> bool:
        return bool(self.restored or self.changed or self.unsure or self.unchecked)


@contextlib.contextmanager
def undisturbed(models: Models, *, deep: bool) -> Iterator[Outcome]:
    """Run a line at the prompt or a condition. `deep` also names the state that it changed on purpose."""
    outcome = Outcome()
    with not_now(), observing():
        streams, threads = RandomState(), OtherThreads()
        saved = _Buffers(is_alone=not threads.are_there)
        before = _versions(models) if deep else {}
    _guarding.append(saved)
    try:
        with (
            watching_calls(saved.save),
            own_saved_tensors(),
            parametrizations_kept(),
            _unprofiled(),
            _without_autocast_cache(),
        ):
            yield outcome
    finally:
        _guarding.remove(saved)
        with not_now(), observing():
            if (moved := streams.changed()) and threads.have_run():
                outcome.unsure += moved
            elif moved:
                streams.restore()
                outcome.restored.append(f"random streams ({', '.join(moved)})")
            if drawn := saved.generators.restore():
                outcome.restored.append(f"generators of modules ({', '.join(dict.fromkeys(drawn))})")
            undone = saved.restore()
            if undone:
                outcome.restored.extend(_names_of(models, undone))
            if deep:
                outcome.changed = _changed(before, _versions(models), undone)


def note_before_change(module: nn.Module) -> None:
    """A module is about to be changed for a rerun: the lines around it are to put back what it has now.

    They would note that when it is called, which is too late.
    """
    for saved in list(_guarding):
        saved.save(module)


def own_saved_tensors() -> contextlib.AbstractContextManager[Any]:
    """What a line saves for a backward of its own concerns no other code.

    Activation checkpointing counts the tensors that pass its hooks, and would find too many.
    """
    if not has_saved_tensor_hooks():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def _unprofiled() -> contextlib.AbstractContextManager[Any]:
    """TorchScript counts calls, and after a few of them runs other code, with other last digits."""
    return torch.jit.optimized_execution(False)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Autocast holds a lock while it casts a weight for its cache, and a kernel of that cast can be a stop.

    A line that runs the model there would wait for the lock for ever (seen on torch 2.13: `stepi`, then
    `flops`).
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _changed(before: _Versions, after: _Versions, undone: set[int]) -> list[str]:
    return [name for name in after if before.get(name) != after[name] and after[name][0] not in undone]


class _Buffers:
    """The buffers and generators of modules that a line calls, as they were before each was called first.

    `is_alone`: no other thread of the program was there, so one that begins meanwhile belongs to the line. A
    model may run its parts in threads.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self._thread = threading.get_ident()
        self._is_alone = is_alone
        self._dicts: dict[int, tuple[nn.Module, dict[str, Tensor | None]]] = {}
        self._values: dict[int, tuple[Tensor, Tensor, int]] = {}
        self._reach = Reach(tensors=False)
        self.generators = Generators()

    def save(self, module: nn.Module) -> None:
        """A module is about to run: keep what it and its parts have.

        Its parts, too: it may run one by its `forward`, of which no hook hears.
        """
        if id(module) in self._dicts or not (self._is_alone or threading.get_ident() == self._thread):
            return  # the hook is process-wide; what other threads run is the run
        for part in module.modules():
            self._save_one(part)

    def _save_one(self, module: nn.Module) -> None:
        buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
        if id(module) in self._dicts or any(is_torch(buffer, "FakeTensor") for buffer in buffers):
            return  # `torch.export` has exchanged its buffers, and puts them back itself
        self._dicts[id(module)] = (module, dict(module._buffers))
        if not self._reach.has(module):
            self._reach.add_module("", module)
            for generator in self._reach.generators:
                self.generators.add(generator)
        with observing() if buffers else contextlib.nullcontext():
            for buffer in buffers:
                if id(buffer) not in self._values and not is_lazy(buffer):
                    self._values[id(buffer)] = (buffer, buffer.detach().clone(), version_of(buffer))

    def restore(self) -> set[int]:
        """Put back what is not what it was; the ids of those tensors.

        By value and through `.data`: batch norm writes its statistics without a version bump, and a bump
        would make autograd refuse a graph that saved them. A module may also have put another tensor there.
        """
        undone = set()
        for module, before in self._dicts.values():
            now = dict(module._buffers)  # of a scripted module it is no dictionary, and has no `get`
            for name in [name for name in now if name not in before]:
                del module._buffers[name]
            for name, buffer in before.items():
                if now.get(name) is not buffer:
                    module._buffers[name] = buffer
                    undone.add(id(buffer))
        for buffer, values, version in self._values.values():
            if buffer.shape == values.shape and not _equal(buffer, values):
                buffer.data.copy_(values)
                undone.add(id(buffer))
            if version not in (-1, version_of(buffer)):
                set_version(buffer, version)
        return undone


_guarding: list[_Buffers] = []
"""What the lines and reruns that are under way have noted, the outermost first."""


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _names_of(models: Models, ids: set[int]) -> list[str]:
    return [name for name, tensor in state_of(models) if id(tensor) in ids]


def state_of(models: Models) -> Iterator[tuple[str, Tensor]]:
    """Every parameter, buffer and gradient, by name."""
    for path, module in models.everything():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{path}.{name}", parameter
                if parameter.grad is not None:
                    yield f"{path}.{name}.grad", parameter.grad
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield f"{path}.{name}", buffer


def _versions(models: Models) -> _Versions:
    return {name: (id(tensor), version_of(tensor)) for name, tensor in state_of(models)}
