"""Copies of a model and of its last training batch, to try things on. The run does not notice.

The copy has no hook of the program. What it draws at random is drawn after the streams of the run were noted,
and they are put back. No optimizer of torch steps and no `backward()` is called, because other code may
listen to both: gradients come from `torch.autograd.grad`, and a small Adam of our own takes the steps.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from layerstep._torch import drop_hooks, is_compiled, is_in_jvp, is_scripted, modes_off
from layerstep._torch.process_state import global_hooks_silent, parametrizations_kept
from layerstep._torch.tensors import is_tensor
from layerstep.doctor.training_calls import TrainingCall
from layerstep.errors import UserError
from layerstep.expressions.scope import stdout_of_this_thread
from layerstep.rerun.other_ranks import waits_for_ranks
from layerstep.rerun.twins import twin_of
from layerstep.side_effects.guard import undisturbed
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Trial", "trying", "without_dropout"]

SECONDS = 20.0
"""How long a probe may train copies; then it says how far it came."""
SEED = 0
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class Trial:
    """A training call to be repeated on copies."""

    def __init__(self, call: TrainingCall, optimizers: Sequence[Optimizer] = ()) -> None:
        self.call = call
        self.optimizers = optimizers
        """Those of the run. They are read, never stepped."""
        self._until = time.monotonic() + SECONDS
        self.is_out_of_time = False

    @property
    def has_time(self) -> bool:
        self.is_out_of_time |= time.monotonic() >= self._until
        return not self.is_out_of_time

    def twin(self, *, train: bool | None = None) -> nn.Module:
        """A fresh copy of the model, in the mode of the run or in another."""
        made = twin_of(self.call.module)
        drop_hooks(made)
        return made if train is None else made.train(train)

    def output(self, model: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Any:
        """What the model makes of the batch; `change` is applied to each tensor of it."""
        args, kwargs = self.call.arguments()
        if change is not None:
            args, kwargs = changed(args, change), changed(kwargs, change)
        with self._autocast():
            return model(*args, **kwargs)

    def loss(
        self,
        model: nn.Module,
        *,
        constants: Sequence[Tensor] | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The loss of a copy on the batch, made as in the run."""
        recipe = self.call.recipe
        if recipe is None:
            hint = "`probe` lists those that need no loss"
            raise UserError(f"the loss is made in a way that cannot be repeated: {self.call.trouble}", hint)
        made = [tensor for tensor in tensors_of(self.output(model, change)) if tensor.requires_grad]
        return recipe.loss(made, dict(model.named_parameters()), constants)

    def _autocast(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for device in ("cpu", "cuda"):
            dtype = self.call.autocast.get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
                )
        return stack

    def learn(
        self,
        model: nn.Module,
        *,
        steps: int,
        rate: Callable[[int], float],
        plain: bool = False,
        loss_of: Callable[[nn.Module], Tensor] | None = None,
        until: Callable[[list[float]], bool] | None = None,
    ) -> list[float]:
        """Train a copy on the batch by Adam (`plain`: by gradient descent). The losses before each step."""
        update = _Update([p for p in model.parameters() if p.requires_grad], plain=plain)
        losses: list[float] = []
        for step in range(steps):
            loss = (loss_of or self.loss)(model)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]) or not self.has_time or (until is not None and until(losses)):
                break
            update.step(loss, rate(step))
        return losses


class _Update:
    """Steps of Adam or of gradient descent."""

    def __init__(self, parameters: list[nn.Parameter], *, plain: bool) -> None:
        self._parameters = parameters
        self._plain = plain
        self._first = [torch.zeros_like(p) for p in parameters]
        self._second = [torch.zeros_like(p) for p in parameters]
        self._steps = 0

    def step(self, loss: Tensor, rate: float) -> None:
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self._steps += 1
        with torch.no_grad():
            for place, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
                if gradient is not None:
                    parameter.sub_(self._change(place, gradient.to_dense()), alpha=rate)

    def _change(self, place: int, gradient: Tensor) -> Tensor:
        if self._plain:
            return gradient
        first = self._first[place].lerp_(gradient, 0.1)
        second = self._second[place].lerp_(gradient * gradient, 0.001)
        size = (second / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        return first / (1 - 0.9**self._steps) / size


@contextlib.contextmanager
def trying(session: Session, module: nn.Module) -> Iterator[None]:
    """Meanwhile copies of this model may run: with gradients, and nothing of it reaches the run."""
    if kind := waits_for_ranks(module):
        raise UserError(f"the model cannot be tried on a copy: {kind} would wait for the other ranks")
    if any(is_compiled(part) or is_scripted(part) for part in module.modules()):
        raise UserError("the model cannot be tried on a copy: it is compiled")
    if is_in_jvp():
        raise UserError(
            "the model cannot be tried on a copy in torch.func.jvp", "stop at a module outside it"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(session.run.evaluating())
        stack.enter_context(modes_off())
        stack.enter_context(undisturbed(session.run.models, deep=False))
        with observing():
            stack.callback(RandomState().restore)  # even if other threads have drawn meanwhile
        stack.enter_context(global_hooks_silent())
        stack.enter_context(parametrizations_kept(empty=True))
        stack.enter_context(stdout_of_this_thread())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the program has had these warnings
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.default_generator.manual_seed(SEED)  # `torch.manual_seed` would also seed devices to come
        yield


def without_dropout(model: nn.Module) -> nn.Module:
    """The same model with its dropouts off; its norms stay as they are."""
    for part in model.modules():
        if isinstance(part, _DROPOUTS):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0  # type: ignore[assignment]
    return model


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers with each tensor changed."""
    if is_tensor(value):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(changed(each, change) for each in value)
    if isinstance(value, dict):
        return {key: changed(each, change) for key, each in value.items()}
    return value
