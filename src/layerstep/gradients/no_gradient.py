"""Parameters without a gradient, and why. Says only what is certain."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from layerstep.calls.backward import BEGAN_BEFORE
from layerstep.engine.session import Session
from layerstep.gradients.log import GradientLog
from layerstep.gradients.recorder import NamedParameter, named_parameters

__all__ = ["Missing", "biases_before_norms", "in_backward", "missing_gradients", "outside_optimizers"]


class Missing(NamedTuple):
    """A parameter that has no gradient now: a word for the reason, and the reason."""

    name: str
    kind: str
    reason: str


def in_backward(session: Session) -> bool:
    """Did the run stop in the middle of a backward pass?"""
    phase = session.run.pause.phase if session.run.pause is not None else None
    return phase is not None and phase.is_backward


def missing_gradients(session: Session, log: GradientLog | None) -> list[Missing]:
    """Every parameter without a gradient, in the order of the model."""
    every = named_parameters(session)
    others_have = any(each.parameter.grad is not None for each in every)
    return [
        Missing(each.name, *_reason(session, each, log=log, others_have=others_have))
        for each in every
        if each.parameter.grad is None
    ]


def _reason(
    session: Session, each: NamedParameter, *, log: GradientLog | None, others_have: bool
) -> tuple[str, str]:
    if not each.parameter.requires_grad:
        return "frozen", "requires_grad is False"
    if in_backward(session):
        return "to come", "this backward is not over"
    had = log.last_step_of(each.name) if log is not None else None
    if had is not None:
        return "cleared", f"it had one in training step {had}; zero_grad has cleared it"
    steps = len(log) if log is not None else 0
    came_by, unseen = _followed(session, each.layer)
    if unseen:
        return ("unused" if "not called" in unseen else "detached"), unseen
    if not (others_have or steps):
        if came_by:
            return "none now", "a backward reached its module: zero_grad has cleared it, or it got none there"
        return "none yet", "no parameter has one: no backward yet, or zero_grad has cleared them all"
    if steps:
        return "not reached", f"none in {steps} recorded steps: the loss does not depend on it"
    return "not reached", "others have one: the last backward did not come here"


def _followed(session: Session, path: str) -> tuple[bool, str]:
    """Did a backward pass reach a module, and if not, why not? "" if no whole forward was followed."""
    backpass, module = session.backward_pass, session.run.models.at(path)
    roots = {id(model.root) for model in session.run.models}
    whole = (call for call in backpass.graph.calls if call.parent is None and call.unseen != BEGAN_BEFORE)
    is_whole = any(id(call.module) in roots for call in whole)
    if module is None or not (is_whole and backpass.passes):
        return False, ""
    return backpass.seen(module) > 0, backpass.why_unseen(module)


def outside_optimizers(session: Session) -> list[str] | None:
    """Trainable parameters that are in no optimizer that has stepped; None if none has stepped yet."""
    optimizers = [found for each in session.run.training.optimizers if (found := each.optimizer) is not None]
    if not optimizers:
        return None
    inside = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [
        each.name
        for each in named_parameters(session)
        if each.parameter.requires_grad and id(each.parameter) not in inside
    ]


_BIASED = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def biases_before_norms(session: Session) -> dict[int, str]:
    """Biases that a norm cancels, by id, with the path of the norm: their gradient is about 0.

    A batch norm on batch statistics subtracts the mean of each channel, and so do an instance norm and a
    group norm with one channel in each group; a layer norm does not. We conclude from their order in the
    parent that the norm follows the layer, so this is probable, not certain.
    """
    found: dict[int, str] = {}
    for _, module in session.run.models.everything():
        for one, other in itertools.pairwise(module.children()):
            if isinstance(one, _BIASED) and one.bias is not None and _takes_means_away(other):
                found[id(one.bias)] = session.run.models.path_of(other)
    return found


def _takes_means_away(norm: nn.Module) -> bool:
    if isinstance(norm, _BatchNorm | _InstanceNorm):
        return norm.training or not norm.track_running_stats
    return isinstance(norm, nn.GroupNorm) and norm.num_groups == norm.num_channels
