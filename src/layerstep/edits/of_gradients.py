"""Edits of gradients: of what a module returns, as it arrives; of a parameter, before its optimizer steps.

A hook on a parameter would act once for each backward pass that is accumulated, and under
DistributedDataParallel before the ranks are averaged. Before the optimizer steps, the gradient is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from layerstep.calls.events import Event
from layerstep.edits.acting import LeftAlone, Make, Occasion, Reach, only_tokens
from layerstep.edits.exchange import floating_tensors
from layerstep.edits.target import like
from layerstep.errors import UserError
from layerstep.expressions.expression import Expression
from layerstep.side_effects.guard import state_of, undisturbed
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["ParameterGradient", "at_output", "parameter_gradient"]


def at_output(session: Session, text: str, *, reach: Reach) -> Make:
    """Replaces the gradient of what a module returns by an expression of `grad`, as it arrives."""
    expression = Expression.parse(text)

    def make(occasion: Occasion) -> Event:
        tensors = [
            tensor for _, tensor in floating_tensors(occasion.event.output, "out") if tensor.requires_grad
        ]
        if not tensors:
            raise LeftAlone(f"what {occasion.place.path} returned needs no gradient")
        only = only_tokens(reach, occasion)

        def replaced(grad: Tensor) -> Tensor | None:
            return _replaced(session, expression, grad, occasion.place.path, only=only)

        for tensor in tensors:
            if only is not None:
                only(tensor.detach(), tensor.detach())  # it says now if the tokens are not there
            tensor.register_hook(replaced)
        return occasion.event._replace()

    return make


class ParameterGradient:
    """Replaces the gradient of a parameter before each step of an optimizer that has it."""

    def __init__(
        self,
        session: Session,
        name: str,
        parameter: Tensor,
        *,
        text: str,
        most: int,
        condition: Expression | None,
    ) -> None:
        self._session = session
        self.name = name
        self._parameter = parameter
        self.text = text
        self._expression = Expression.parse(text)
        self._most = most
        """In how many steps it acts; 0 for all."""
        self._condition = condition
        self.acted = 0

    def turn(self, on: bool) -> None:
        training = self._session.run.training
        training.listen(training.before, self._step, on)

    def _step(self, stepped: Stepped) -> None:
        optimizer, grad = stepped.optimizer, self._parameter.grad
        if optimizer is None or grad is None or 0 < self._most <= self.acted:
            return
        groups = optimizer.param_groups
        if not any(each is self._parameter for group in groups for each in group["params"]):
            return
        new = _replaced(self._session, self._expression, grad, self.name, condition=self._condition)
        if new is not None:
            with torch.no_grad():
                grad.copy_(new)
            self.acted += 1


def parameter_gradient(
    session: Session, name: str, text: str, *, most: int, condition: Expression | None
) -> ParameterGradient | None:
    """The edit of the gradient of a parameter; None if there is no one parameter of that name."""
    known = dict(state_of(session.run.models))
    found = [each for each in known if each == name or each.endswith("." + name)]
    if len(found) != 1 or not isinstance(known[found[0]], Parameter):
        return None
    return ParameterGradient(session, found[0], known[found[0]], text=text, most=most, condition=condition)


def _replaced(
    session: Session,
    expression: Expression,
    grad: Tensor,
    path: str,
    *,
    condition: Expression | None = None,
    only: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor | None:
    """The new gradient; None if the condition does not hold, or, with a word, if an expression raises."""
    scope = session.run.scope_at(None)
    scope["grad"] = grad
    try:
        with session.run.evaluating(), undisturbed(session.run.models, deep=False):
            if condition is not None and not condition.evaluate(scope):
                return None
            new = like(expression.evaluate(scope), grad)
            if new.shape != grad.shape:  # torch would end the backward pass
                raise UserError(f"the gradient has the shape {list(grad.shape)}, not {list(new.shape)}")
            return only(grad, new) if only is not None else new
    except Exception as error:
        line = f"raised {type(error).__name__}: {error}".partition("\n")[0]
        said = f"did not act: {error}" if isinstance(error, UserError) else line
        session.say(Notice(f"the edit of the gradient of {path} {said}", "the gradient stays", level="error"))
        return None
