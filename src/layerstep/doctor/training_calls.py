"""The last call of a model that was trained on, and how the loss came out of it: what probes work with.

Only the calls of steps that are looked at are noted. The arguments are copies, the module is held weakly, and
of the outputs only their values are kept, until `backward()` begins: no graph lives longer than without us.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import node_number
from layerstep._torch.tensors import size_of
from layerstep.doctor.finding import Place
from layerstep.doctor.loss_graph import Criterion
from layerstep.doctor.loss_recipe import NotRepeatable, Recipe, read_recipe
from layerstep.errors import UserError, first_line
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import length_of
from layerstep.tensors.containers import tensors_of

__all__ = ["TrainingCall", "TrainingCalls", "note_call"]

BATCH_BYTES = 256 << 20
"""A larger batch is not copied."""
CALLS = 4
"""Calls that may wait for their backward pass."""


@dataclass(slots=True, eq=False)
class TrainingCall:
    """One call of a model with gradients, as it was made."""

    reference: weakref.ref[nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: dict[str, torch.dtype]
    step: int
    recipe: Recipe | None = None
    loss: float = 0.0
    trouble: str = "no backward() has begun at its output"
    """Why there is no recipe."""
    labels: tuple[tuple[Tensor, int | None], ...] = ()
    """The labels of its loss functions that are whole numbers, and the number that is ignored."""
    made_at: Place = field(default_factory=Place)
    """The line that made the loss."""

    @property
    def module(self) -> nn.Module:
        found = self.reference()
        if found is None:
            raise UserError("the model that was trained is gone")
        return found

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A fresh copy, because a forward may write to them."""
        copies = Copies(CallProgress.BEFORE, length_of(self.args, self.kwargs))
        return copies.of(self.args), copies.of(self.kwargs)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call whose backward pass has not begun."""

    call: TrainingCall
    outputs: tuple[tuple[int, int], ...] = ()
    values: tuple[Tensor, ...] = ()


class TrainingCalls:
    """Notes the calls. All of it runs under `observing`."""

    def __init__(self) -> None:
        self.last: TrainingCall | None = None
        """The last call whose backward pass has begun."""
        self._waiting: list[_Waiting] = []
        self._verified: set[tuple[str, ...]] = set()

    def begins(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        step: int,
        autocast: dict[str, torch.dtype],
    ) -> None:
        """A model is called with gradients."""
        size = sum(map(size_of, tensors_of((args, kwargs))))
        if size > BATCH_BYTES:
            self._waiting.clear()
            return
        self._waiting.append(_Waiting(note_call(module, args, kwargs, step=step, autocast=autocast)))
        del self._waiting[:-CALLS]

    def ends(self, module: nn.Module, output: Any) -> None:
        """It has returned."""
        waiting = self._waiting[-1] if self._waiting else None
        if waiting is None or waiting.call.reference() is not module or waiting.values:
            return
        made = [t for t in tensors_of(output) if t.requires_grad]
        waiting.outputs = tuple((node_number(t.grad_fn) if t.grad_fn else 0, t.output_nr) for t in made)
        waiting.values = tuple(t.detach() for t in made)

    def outputs(self) -> dict[int, Tensor]:
        """What the calls that wait for their backward pass have returned, by the numbers of their nodes."""
        return {
            number: value
            for each in self._waiting
            for (number, _), value in zip(each.outputs, each.values, strict=True)
        }

    def backward(
        self, loss: Tensor, criteria: Sequence[Criterion] = (), made_at: Place | None = None
    ) -> None:
        """A backward pass begins at this loss."""
        waiting, self._waiting = self._waiting, []
        if not waiting or loss.grad_fn is None or loss.numel() != 1:
            return
        found = self._of_one(loss, waiting)
        found.loss, found.made_at = float(loss.detach()), made_at or Place()
        found.labels = tuple(
            (each.target.detach().clone(), each.ignore_index)
            for each in criteria
            if each.target is not None and not each.target.is_floating_point()
        )
        self.last = found

    def forget(self) -> None:
        """Drop what waits for a backward pass: the next step is not looked at."""
        self._waiting.clear()

    def _of_one(self, loss: Tensor, waiting: Sequence[_Waiting]) -> TrainingCall:
        """The call that the loss comes from, the latest first; its recipe, or why there is none."""
        trouble = ""
        for each in reversed(waiting):
            call = each.call
            try:
                call.recipe = self._recipe(loss, each)
            except NotRepeatable as error:
                trouble = trouble or str(error)
            except Exception as error:  # a node that is built differently
                trouble = trouble or f"{type(error).__name__}: {first_line(error)}"[:200]
            else:
                return call
        last = waiting[-1].call
        last.trouble = trouble if len(waiting) == 1 else f"{trouble}; models were called {len(waiting)} times"
        return last

    def _recipe(self, loss: Tensor, waiting: _Waiting) -> Recipe:
        module = waiting.call.module
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        recipe = read_recipe(loss, waiting.outputs, waiting.values, names)
        if recipe.signature not in self._verified:
            recipe.verify(waiting.values, dict(module.named_parameters()), loss)
            self._verified.add(recipe.signature)
        return recipe


def note_call(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    step: int,
    autocast: dict[str, torch.dtype],
) -> TrainingCall:
    """A call with copies of its arguments."""
    copies = Copies(CallProgress.BEFORE, length_of(args, kwargs))
    return TrainingCall(weakref.ref(module), copies.of(args), copies.of(kwargs), autocast, step)
