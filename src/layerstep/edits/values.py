"""The values that `ablate`, `scale`, `steer`, `skip` and `patch` put in place of what a module returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Event
from layerstep.edits.acting import Occasion, Reach, only_tokens
from layerstep.edits.exchange import floating_tensors
from layerstep.edits.gradients import Gradient
from layerstep.edits.target import Target, like
from layerstep.errors import UserError

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Value", "main_tensor", "mean_value", "noise", "replacing", "resampled", "same_shape"]

Value = Callable[[Tensor, Occasion], Any]


def main_tensor(value: Any, place: str, path: str) -> tuple[str, Tensor]:
    """The tensor that is meant where a module returns several: the first one of floating numbers."""
    found = floating_tensors(value, place)
    if not found:
        raise UserError(f"{path} returns no tensor of floating numbers")
    return found[0]


def replacing(
    value: Value, *, reach: Reach, gradient: Gradient = "stop", base: str = "out"
) -> Callable[[Occasion], Event]:
    """Replaces the main tensor of a call by a value made from it."""

    def make(occasion: Occasion) -> Event:
        whole = Target(base, base, ()).value(occasion.event)
        place, old = main_tensor(whole, base, occasion.place.path)
        new = value(old, occasion)
        only = only_tokens(reach, occasion)
        names: dict[str, Any] = {}
        return Target.parse(place).replaced(occasion.event, new, names, gradient=gradient, only=only)

    return make


def noise(old: Tensor, occasion: Occasion, size: float | None) -> Tensor:
    """Adds normal noise: of that size, or of the spread of the values."""
    spread = size if size is not None else float(old.detach().float().std())
    drawn = torch.randn(old.shape, generator=occasion.generator(old.device), device=old.device)
    return old + (drawn * spread).to(old.dtype)


def resampled(old: Tensor, occasion: Occasion) -> Tensor:
    """Each row of the batch gets the values of another one."""
    if old.dim() < 2 or old.shape[0] < 2:
        raise UserError(
            f"{occasion.place.path}: a batch of one has no other row",
            "`patch PATH from out@-1` takes a recorded one",
        )
    drawn = torch.randint(1, old.shape[0], (1,), generator=occasion.generator(torch.device("cpu")))
    return old.roll(int(drawn), 0)


def mean_value(session: Session, path: str) -> tuple[Value, str]:
    """The mean of each feature: over the recorded forwards if there are some, else over this batch."""
    kept = [entry.value for entry in session.run.recordings.of(path) if is_tensor(entry.value)]
    if kept:
        mean = torch.stack([_features(value.float()) for value in kept]).mean(0)
        return lambda old, occasion: like(mean, old), f"of {len(kept)} recorded forwards"
    return lambda old, occasion: like(
        _features(old.detach()), old
    ), "of this batch; `record PATH --tensors` keeps more"


def _features(value: Tensor) -> Tensor:
    return value.mean(dim=tuple(range(value.dim() - 1))) if value.dim() > 1 else value.mean()


def same_shape(value: Any, old: Tensor, path: str) -> Tensor:
    """A value of another run, if it fits."""
    found = value
    if not is_tensor(value):
        tensors = floating_tensors(value, "out")
        found = tensors[0][1] if tensors else None
    if not is_tensor(found):
        raise UserError(f"no tensor to put in place of the output of {path}")
    if found.shape != old.shape:
        raise UserError(f"{path} returns {list(old.shape)}, and the value has {list(found.shape)}")
    tensor: Tensor = found.detach().to(old)
    return tensor
