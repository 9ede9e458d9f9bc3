"""Is the gradient the derivative of the loss?"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from layerstep._torch import function_modes_on
from layerstep.doctor.loss_recipe import Recipe
from layerstep.doctor.probe import Found, probe
from layerstep.doctor.trial import Trial
from layerstep.errors import UserError
from layerstep.gradients.check import Check, GradCheck
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.format import number
from layerstep.tensors.shapes import dtype_name

__all__ = ["numeric_gradient"]

SHOWN = 4


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Double(TorchFunctionMode):
    """Keeps what is double: many models call `.float()` in their norms and before their loss."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = args[0] if args else None
        if not isinstance(given, Tensor) or given.dtype is not torch.float64:
            return func(*args, **kwargs)
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return given
        if func is Tensor.to:
            args = tuple(torch.float64 if _is_narrow(each) else each for each in args)
        if _is_narrow(kwargs.get("dtype")):
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW


class _WithLoss(nn.Module):
    """The model and its loss as one module, so that its output is the loss."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.model = model
        self._recipe = recipe
        for place, constant in enumerate(recipe.constants):
            self.register_buffer(f"constant_{place}", constant.value.clone(), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        with function_modes_on(), _Double():
            made = [tensor for tensor in tensors_of(self.model(*args, **kwargs)) if tensor.requires_grad]
            constants = [getattr(self, f"constant_{place}") for place in range(len(self._recipe.constants))]
            loss = self._recipe.loss(made, dict(self.model.named_parameters()), constants)
        if loss.dtype is not torch.float64 and next(self.model.parameters()).dtype is torch.float64:
            raise UserError("the model rounds to less than float64 on the way: slopes would be too coarse")
        return loss

    def __deepcopy__(self, memo: dict[int, Any]) -> _WithLoss:
        """Share the recipe, which holds functions, and copy the rest."""
        twin = _WithLoss(copy.deepcopy(self.model, memo), self._recipe)
        memo[id(self)] = twin
        return twin


@probe("numeric-gradient", cost="some hundred forwards of a copy in float64, for at most 5 seconds")
def numeric_gradient(trial: Trial) -> Found:
    """Does autograd's gradient agree with the slope of the loss?

    Some elements of each parameter of a copy in float64 are moved up and down, and the change of the loss is
    compared with the gradient. They differ where a backward is written wrongly, where `detach()`, `no_grad()`
    or `.data` cuts a path, or where an operation passes on a gradient that is not its own on purpose.
    """
    recipe = trial.call.recipe
    trial.loss(trial.twin())  # says why, if the loss cannot be repeated
    assert recipe is not None
    args, kwargs = trial.call.arguments()
    with torch.enable_grad():
        check: Check = GradCheck(_WithLoss(trial.twin(), recipe))(*args, **kwargs)
    parameters = [each for each in check.checked if each.name.startswith("model.")]
    if not parameters:
        raise UserError("the model has no parameters that are floats")
    wrong = [each for each in parameters if each.wrong]
    agree, unclear = sum(each.agree for each in parameters), sum(each.unclear for each in parameters)
    figures = [("agree", f"{agree:,} elements"), ("unclear", f"{unclear:,}, at kinks or below rounding")]
    if check.left:
        figures.append(("not reached", f"{check.left:,} in 5 seconds"))
    did = f"moved elements of {len(parameters)} parameters of a copy in {dtype_name(check.dtype)}"
    if not wrong:
        return Found("yes: the gradient is the slope of the loss", "good", did, tuple(figures))
    for each in wrong[:SHOWN]:
        one = each.wrong[0]
        words = f"autograd {number(one.autograd)}, slope {number(one.numeric)}"
        if each.factor is not None:
            words += f"; off by the factor {number(each.factor)}"
        figures.append((each.name.removeprefix("model."), words))
    text = f"no: {len(wrong)} of {len(parameters)} parameters get a gradient that is not the slope"
    return Found(text, "warn", did, tuple(figures))
