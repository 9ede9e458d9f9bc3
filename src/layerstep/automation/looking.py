"""Actions of hooks that only look: figures, sizes, snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerstep.automation.hook import Hook, HookContext, Moment
from layerstep.gradients.recorder import named_parameters
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.summary import summarize
from layerstep.training_steps.steps import Stepped

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["figures_of", "save_snapshot", "tensors_at"]

MOST_ELEMENTS = 1 << 20
"""Elements of a tensor that are read for its figures."""


def figures_of(context: HookContext) -> dict[str, Any]:
    """Loss and gradient norm of a step, or the figures of a layer's output or gradient."""
    found: dict[str, Any] = {"step": context.step, "layer": context.layer}
    if context.moment is Moment.STEP:
        return {**found, "loss": context.loss, "grad_norm": context.grad_norm}
    for _, tensor in tensors_in(context.value, most=1):
        stats = summarize(tensor, limit=MOST_ELEMENTS, brief=True).stats
        if stats is not None:
            found |= {"mean": stats.mean, "std": stats.std, "min": stats.min, "max": stats.max}
            found["nonfinite"] = stats.nan + stats.posinf + stats.neginf
    return found


def tensors_at(session: Session, hook: Hook, context: HookContext) -> list[tuple[str, str, Tensor]]:
    """Name, layer and tensor: the output of a layer or the gradient at it; at a step, the gradients."""
    if context.moment is not Moment.STEP:
        found = tensors_in(context.value, most=4)
        return [(f"{context.layer}{place}", context.layer, each) for place, each in found]
    every = named_parameters(session)
    if hook.patterns:
        models = session.run.models
        inside = {id(p) for where in hook.patterns for _, m in where.look_up(models) for p in m.parameters()}
        every = [each for each in every if id(each.parameter) in inside]
    return [(e.name, e.layer, g) for e in every if (g := e.parameter.grad) is not None]


def save_snapshot(session: Session, folder: Path, context: HookContext, stepped: Stepped | None) -> Path:
    """Write what a layer returned; at a step, the state of the models and of the optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (f"step-{context.step}" + (f"-{context.layer}" if context.layer else "") + ".pt")
    if stepped is None:
        torch.save(
            {place or "value": t.detach().clone() for place, t in tensors_in(context.value, most=8)}, file
        )
        return file
    optimizer = stepped.optimizer
    models = {m.name: m.root.state_dict() for m in session.run.models if m.root is not None}
    state = optimizer.state_dict() if optimizer is not None else {}
    torch.save({"step": context.step, "models": models, "optimizer": state}, file)
    return file
