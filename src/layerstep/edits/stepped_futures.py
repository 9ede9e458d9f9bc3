"""Two futures over a training step: the loss, the gradients, and the weights after the optimizer, on copies.

The forward runs with copies of the parameters in place of them, so that no hook of theirs is called and no
gradient of the program is written. The optimizer that steps is a copy, too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerstep.calls.stack import Frame
from layerstep.edits.futures import Future, run_future
from layerstep.edits.sweep import value_of
from layerstep.engine.points import Edit
from layerstep.errors import UserError, first_line
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["StepApart", "SteppedFuture", "run_step", "steps_apart"]


@dataclass(slots=True)
class SteppedFuture:
    """What a training step would give."""

    forward: Future
    loss: float
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    """The parameters after the step; none if no optimizer is known."""


@dataclass(frozen=True, slots=True)
class StepApart:
    """How far two training steps are apart at a parameter, as shares of the norm of the first."""

    name: str
    gradient: float
    weight: float | None


def run_step(session: Session, call: Frame, edits: Sequence[Edit], *, loss: str) -> SteppedFuture:
    """Run a call once more on copies with these edits, then its backward pass and a step."""
    module = call.module
    assert module is not None
    with observing():
        copies = {
            name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
            for name, parameter in module.named_parameters()
        }
    found: list[tuple[float, tuple[Tensor | None, ...]]] = []
    trained = {name: each for name, each in copies.items() if each.requires_grad}

    def backward(output: Any) -> None:
        value = _loss_of(session, output, loss)
        try:
            gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
        except RuntimeError as error:
            raise UserError(f"no backward pass from {loss}: {first_line(error)}") from None
        found.append((float(value.detach()), gradients))

    forward = run_future(session, call, edits, weights=copies, then=backward)
    ((value, gradients),) = found
    named = dict(zip(trained, gradients, strict=True))
    return SteppedFuture(forward, value, named, _stepped(session, module, copies, named))


def _loss_of(session: Session, output: Any, text: str) -> Tensor:
    if text:
        value = value_of(session, output, text)
    else:
        value = getattr(output, "loss", output)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise UserError(
            f"{text or 'the output'} is not a loss: it must be one number with a gradient",
            "diff --step metric out.logsumexp(-1).mean()",
        )
    return value.reshape(())


def _stepped(
    session: Session, module: nn.Module, copies: dict[str, Tensor], gradients: dict[str, Tensor | None]
) -> dict[str, Tensor]:
    """The parameters after a step of copies of the optimizers that have them."""
    own = {id(parameter): copies[name] for name, parameter in module.named_parameters()}
    known = {id(each.optimizer): each.optimizer for each in session.run.training.optimizers}
    stepped = [o for o in known.values() if o is not None and any(id(p) in own for p in _parameters(o))]
    if not stepped:
        return {}
    with session.run.evaluating(), torch.no_grad():
        for name, gradient in gradients.items():
            copies[name].grad = gradient
        for optimizer in stepped:
            _step_copy(optimizer, own)
    return {name: each.detach() for name, each in copies.items()}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _step_copy(optimizer: Optimizer, own: dict[int, Tensor]) -> None:
    """Step a copy that has copies of the parameters; no hook of the program or of ours is called."""
    memo: dict[int, Any] = {id(p): own[id(p)] if id(p) in own else _alone(p) for p in _parameters(optimizer)}
    twin = copy.copy(optimizer)
    twin.param_groups = copy.deepcopy(optimizer.param_groups, memo)
    twin.state = copy.deepcopy(optimizer.state, memo)
    step = getattr(type(twin).step, "__wrapped__", None)  # torch wraps it to call hooks
    if step is None:
        raise UserError(f"{type(optimizer).__name__} cannot step on copies")
    try:
        step(twin)
    except Exception as error:
        raise UserError(f"{type(optimizer).__name__} cannot step on copies: {first_line(error)}") from None


def _alone(parameter: Tensor) -> Tensor:
    """Of another model: it has no gradient here, so that the step leaves it alone."""
    return parameter.detach().clone()


def steps_apart(one: SteppedFuture, other: SteppedFuture) -> list[StepApart]:
    """The parameters whose gradients or new values differ, in their order."""
    found = []
    with observing():
        for name, before in one.gradients.items():
            gradient = _distance(before, other.gradients[name])
            new = one.weights.get(name)
            weight = _distance(new, other.weights[name]) if new is not None else None
            if gradient or weight:
                found.append(StepApart(name, gradient, weight))
    return found


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if torch.equal(one, other):
        return 0.0
    off, size = float((other.double() - one.double()).norm()), float(one.double().norm())
    return off / size if size else float("inf")
