"""The module calls that can be looked at in a stop: those that run, and those that have finished."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.module_paths.where import Where
from layerstep.rerun.kv_caches import CallProgress

__all__ = ["LayerCall", "calls_at", "calls_here", "layers_in_view"]


class LayerCall(NamedTuple):
    """The arguments of a module call, and its output if it has returned."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    progress: CallProgress


_MOMENTS = {
    "entering": CallProgress.BEFORE,
    "running": CallProgress.DURING,
    "raised": CallProgress.DURING,
    "done": CallProgress.AFTER,
}


def calls_here(session: Session) -> list[LayerCall]:
    """The calls that run, the innermost first. At an exit the innermost one has finished."""
    stack = session.run.pause.stack if session.run.pause is not None else []
    return [
        LayerCall(f.path, f.module, f.args, f.kwargs, f.output if f.has_output else None, _MOMENTS[f.state])
        for f in stack
        # In the backward pass no call of the forward is running.
        if f.module is not None and f.call is None and f.op is None
    ]


def calls_at(session: Session, where: str) -> list[LayerCall]:
    """The calls of the modules that a WHERE names, none inside another.

    For a module not in view, those in it.
    """
    found = Where.parse(where).look_up(session.run.models)
    running = {id(call.module): call for call in calls_here(session)}
    calls: list[LayerCall] = []
    inside: set[int] = set()
    for path, module in found:
        if id(module) not in inside:
            calls += _in_view(session, path, module, running)
            inside |= {id(part) for call in calls for part in call.module.modules()}
    if not calls:
        raise UserError(
            f"nothing of {where} is in view: none of it was passed in this forward",
            f"`break {where}`, `record {where} --tensors` before the forward, or step over it",
        )
    return calls


def _in_view(
    session: Session, path: str, module: nn.Module, running: dict[int, LayerCall]
) -> list[LayerCall]:
    if id(module) in running:
        return [running[id(module)]]
    kept = session.run.seen_calls.get(module)
    if kept is not None:
        return [LayerCall(path, module, *kept, CallProgress.AFTER)]
    return [
        call
        for name, child in module.named_children()
        for call in _in_view(session, f"{path}.{name}", child, running)
    ]


def layers_in_view(session: Session, where: str) -> list[LayerCall]:
    """The finished calls of exactly the modules that a WHERE names, in the order of the model."""
    found = Where.parse(where).look_up(session.run.models)
    kept = [(path, module, session.run.seen_calls.get(module)) for path, module in found]
    calls = [
        LayerCall(path, module, *call, CallProgress.AFTER) for path, module, call in kept if call is not None
    ]
    if not calls:
        raise UserError(
            f"nothing of {where} is in view: none of its {len(found)} modules was passed in this forward",
            f"`record {where} --tensors` before the forward, or step over them",
        )
    return calls
