"""A forward that runs on copies, with edits or without: what it would give.

The run stands still meanwhile and is as it was afterwards: each future begins with the same inputs, random
streams and buffers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerstep._torch import function_modes_on, is_transformed, is_transforming
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.edits.exchange import floating_tensors
from layerstep.engine.points import Edit
from layerstep.errors import UserError, first_line
from layerstep.hooks.temporary import editing_calls, watching_outputs
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import Caches, CallProgress
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.side_effects.guard import note_before_change
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.observing import observing
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Future", "Parting", "about_numbers", "futures_apart", "outermost_call", "run_future"]

Key = tuple[str, int]
"""The path of a module, and which of its calls it is: a ReLU may be called twice in a block."""


@dataclass(slots=True)
class Future:
    """What a forward would give."""

    output: Any = None
    outputs: dict[Key, Tensor] = field(default_factory=dict)
    """The main tensor that each call returned, in their order."""
    has_other_numbers: bool = False
    """It drew random numbers, and not those of the run: where these began was not kept."""


@dataclass(frozen=True, slots=True)
class Parting:
    """How far two futures are apart at a call."""

    path: str
    call: int
    distance: float
    """The norm of the difference, as a share of the norm of the first."""


def outermost_call(session: Session) -> Frame:
    """The call of a model that runs at this stop."""
    stack = session.run.pause.stack if session.run.pause is not None else []
    outer = next((f for f in reversed(stack) if f.module is not None and f.call is None), None)
    if outer is None:
        raise UserError("no forward runs here", "`break PATH` stops in one")
    return outer


def run_future(
    session: Session,
    call: Frame,
    edits: Sequence[Edit] = (),
    *,
    given: Any = None,
    keep: bool = True,
    weights: dict[str, Tensor] | None = None,
    then: Callable[[Any], None] | None = None,
) -> Future:
    """Run a call once more on copies with these edits; `given` in place of its first input.

    With `weights` in place of the module's own, autograd follows it. `then` is given the output while the
    edits are still there, because a backward pass may run calls again.
    """
    module = _module_to_run(call)
    future, counts = Future(), Counter[str]()
    models = session.run.models

    def seen(called: nn.Module, output: Any) -> None:
        counts[models.path_of(called).partition("|")[0]] += 1
        edited(called, output)

    def edited(called: nn.Module, output: Any) -> None:
        path = models.path_of(called).partition("|")[0]
        found = floating_tensors(output, "out") if keep else []
        if found and _has_bits(found[0][1]):
            future.outputs[path, counts[path]] = found[0][1].detach().clone()

    with contextlib.ExitStack() as stack:
        note_before_change(module)
        stack.enter_context(leaving_no_trace(session, module))
        with observing():
            copies = Copies(
                CallProgress.DURING, length_of(call.args, call.kwargs), session.instruments.get(Caches)
            )
            args, kwargs = copies.of(call.args), copies.of(call.kwargs)
        if given is not None:
            args = (given, *args[1:])
        stack.enter_context(torch.set_grad_enabled(weights is not None))
        stack.enter_context(watching_outputs(seen))
        stack.enter_context(editing_calls(_hooks(session, edits, edited)))
        stack.callback(RandomState().restore)  # of what comes next, even if other threads have drawn
        is_as_then = _turn_streams_back(session, call)
        streams = RandomState()
        try:
            with function_modes_on():
                if weights is None:
                    future.output = module(*args, **kwargs)
                else:
                    future.output = functional_call(module, weights, args, kwargs)
            if then is not None:
                then(future.output)
        except UserError:
            raise
        except Exception as error:  # the model's own code, on values that an edit has made
            line = first_line(error)
            raise UserError(f"the forward cannot be run with it: {type(error).__name__}: {line}") from None
        future.has_other_numbers = not is_as_then and bool(streams.changed())
    return future


def _module_to_run(call: Frame) -> nn.Module:
    """The module of a call that can run again."""
    if is_transforming():
        what = "this forward cannot run again in a transform of torch.func"
        raise UserError(what, "stop at a module outside it")
    assert call.module is not None
    return call.module


def _turn_streams_back(session: Session, call: Frame) -> bool:
    """Begin with the random numbers that the call began with; False if they are not known."""
    found = session.run.followers.get(get_ident())
    follower = found() if found is not None else None
    if follower is not None and follower.module is call.module and follower.turn_streams_back():
        return True
    return call.state == "entering"


def about_numbers(future: Future) -> list[Notice]:
    """What must be known of its random numbers."""
    if not future.has_other_numbers:
        return []
    return [
        Notice(
            "these forwards draw other random numbers than the run: its own were not kept",
            "`back on` keeps them from the next forward on",
            level="warn",
        )
    ]


def _has_bits(tensor: Tensor) -> bool:
    """Can two of this kind be compared? A value of vmap, nested or sparse, has no bits in one place."""
    plain = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)
    return plain and not is_transformed(tensor)


Hooks = tuple[Callable[..., Any] | None, Callable[..., Any] | None]


def _hooks(
    session: Session, edits: Iterable[Edit], edited: Callable[[nn.Module, Any], None]
) -> dict[nn.Module, Hooks]:
    """The edits as hooks on the modules that they are at."""
    by_module: dict[int, tuple[nn.Module, list[Edit]]] = {}
    for edit in edits:
        assert edit.where is not None
        for _, module in edit.where.look_up(session.run.models):
            by_module.setdefault(id(module), (module, []))[1].append(edit)
    found: dict[nn.Module, Hooks] = {}
    for module, own in by_module.values():
        enter = [edit for edit in own if edit.phase is Phase.ENTER]
        leave = [edit for edit in own if edit.phase is Phase.EXIT]
        found[module] = (
            _hook(session, enter, Phase.ENTER, edited) if enter else None,
            _hook(session, leave, Phase.EXIT, edited) if leave else None,
        )
    return found


def _hook(
    session: Session, edits: list[Edit], phase: Phase, edited: Callable[[nn.Module, Any], None]
) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
        event = Event(phase, module, args, kwargs, output)
        for edit in edits:
            place = Frame(session.run.models, module, args=event.args, kwargs=event.kwargs)
            if phase is Phase.EXIT:
                place.state, place.output = "done", event.output
            scope = session.run.scope_at(place)
            if edit.condition is None or edit.condition.evaluate(scope):
                event = edit.change(event, place) or event
        if phase is Phase.ENTER:
            return event.args, event.kwargs
        edited(module, event.output)
        return event.output

    return hook


def futures_apart(one: Future, other: Future) -> list[Parting]:
    """The calls at which two futures differ, in their order."""
    found = []
    with observing():
        for key, before in one.outputs.items():
            after = other.outputs.get(key)
            if after is None or after.shape != before.shape:
                found.append(Parting(*key, float("inf")))
            elif not torch.equal(before, after):
                off = float((after.double() - before.double()).norm())
                found.append(Parting(*key, off / max(float(before.double().norm()), 1e-30)))
    return found
