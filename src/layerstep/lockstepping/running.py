"""Run a model once on copies of its input, and keep what every layer got and returned."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import function_modes_on, is_compiled, is_transforming, unwrap
from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError, first_line
from layerstep.hooks.temporary import watching_parts
from layerstep.lockstepping.trace import Call, Keeper, Trace
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import Caches, CallProgress
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Arguments", "arguments_for", "running_alone", "trace_of"]

MOST_SETTINGS = 60
Change = Callable[[Call, Any], Any]
"""May put another value in the place of what a module returns; None leaves it."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    progress: CallProgress = CallProgress.BEFORE
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def running_alone(session: Session, model: nn.Module) -> Iterator[None]:
    """Let a model run meanwhile; nothing of it stays, autograd records nothing, compiled parts run eager."""
    if is_transforming():
        raise UserError(
            "a model cannot run alone in a transform of torch.func", "stop at a module outside it"
        )
    is_seen = not any(map(is_compiled, model.modules()))
    stance = contextlib.nullcontext() if is_seen else torch.compiler.set_stance("force_eager")
    with leaving_no_trace(session, model), torch.no_grad(), function_modes_on(), stance:
        yield


def trace_of(
    session: Session, model: nn.Module, given: Arguments, *, title: str, change: Change | None = None
) -> Trace:
    """Run the model once on copies. Where its code raises, the trace ends there and says so."""
    model = unwrap(model)
    with observing():
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        watch = _Watch(Trace(title, notes=list(given.notes), state=state), change)
        caches = session.instruments.get(Caches)
        copies = Copies(given.progress, length_of(given.args, given.kwargs), caches)
        args, kwargs = copies.of(given.args), copies.of(given.kwargs)
    with running_alone(session, model):
        streams = RandomState()
        try:
            with watching_parts(model, watch.entered, watch.left):
                model(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # the code of the model, on an input that may not be meant for it
            line = first_line(error)
            watch.trace.raised = f"{type(error).__name__}: {line}"[:200]
        watch.trace.drew = bool(streams.changed())
    if not watch.trace.calls:
        raise UserError(f"{title} cannot be run: {watch.trace.raised or 'it calls no module'}")
    return watch.trace


class _Watch:
    """Writes the calls of one run down."""

    def __init__(self, trace: Trace, change: Change | None) -> None:
        self.trace = trace
        self._change = change
        self._keeper = Keeper()
        self._running: list[Call] = []
        self._counts: dict[int, int] = {}
        self._time = 0

    def entered(self, path: str, module: nn.Module, given: Any) -> None:
        self._counts[id(module)] = number = self._counts.get(id(module), 0) + 1
        parent = self._running[-1] if self._running else None
        call = Call(path, number, type(module).__name__, parent, self._tick(), module=module)
        if parent is not None:
            parent.parts.append(call)
        self._running.append(call)
        self.trace.calls.append(call)
        with observing():
            call.inputs = self._keeper.keep(given)
            call.settings = _settings(module)
            buffers = module.named_buffers(recurse=False)
            call.buffers = {name: each.clone() for name, each in buffers if each.is_floating_point()}

    def left(self, path: str, module: nn.Module, output: Any) -> Any:
        while self._running and self._running[-1].module is not module:
            self._running.pop()  # an exception ended it, and the code around it went on
        if not self._running:
            return None
        call = self._running.pop()
        call.left = self._tick()
        with observing():
            other = self._change(call, output) if self._change is not None else None
            call.outputs = self._keeper.keep(output if other is None else other)
            call.weights = dict(module.named_parameters(recurse=call.is_leaf))
            now = dict(module.named_buffers(recurse=False))
            call.written = {
                name: now[name].clone()
                for name, before in call.buffers.items()
                if name in now and not torch.equal(before, now[name])
            }
        return other

    def _tick(self) -> int:
        self._time += 1
        return self._time


def _settings(module: nn.Module) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    found = {
        name: value
        for name, value in module.__dict__.items()
        if not name.startswith("_")
        and (isinstance(value, plain) or (type(value) is tuple and all(isinstance(v, plain) for v in value)))
    }
    return dict(list(found.items())[:MOST_SETTINGS])


# --- the same input for the other model ---


def arguments_for(model: nn.Module, given: Arguments) -> Arguments:
    """The same input as another model takes it: its parameters' names, its dtype, its device."""
    args, kwargs, notes = _bound(unwrap(model), given)
    first = next((each for each in model.parameters() if each.is_floating_point()), None)
    if first is not None:
        args, kwargs = (_converted(each, first) for each in (args, kwargs))
    return Arguments(args, kwargs, given.progress, notes)


def _bound(model: nn.Module, given: Arguments) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Leave out what it does not take; tensors under names that it does not have go in by their order."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return given.args, given.kwargs, ()
    try:
        signature.bind(*given.args, **given.kwargs)
    except TypeError:
        pass
    else:
        return given.args, given.kwargs, ()
    slots = [
        each.name
        for each in signature.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    args, spare = list(given.args[: len(slots)]), list(given.args[len(slots) :])
    kwargs = {name: value for name, value in given.kwargs.items() if name in slots[len(args) :]}
    left = {name: value for name, value in given.kwargs.items() if name not in kwargs}
    for name in slots[len(args) :]:
        is_needed = signature.parameters[name].default is inspect.Parameter.empty
        candidates = [key for key, value in left.items() if is_tensor(value)]
        if name not in kwargs and is_needed and candidates:
            kwargs[name] = left.pop(candidates[0])
    dropped = [name for name, value in left.items() if value is not None] + ["an argument"] * len(spare)
    notes = (f"{type(model).__name__} does not take {', '.join(dropped)}",) if dropped else ()
    return tuple(args), kwargs, notes


def _converted(value: Any, like: Tensor) -> Any:
    """Floats in the dtype of the model's weights, everything on its device."""
    if is_tensor(value):
        return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(_converted(item, like) for item in value)
    if type(value) is dict:
        return {name: _converted(item, like) for name, item in value.items()}
    return value
