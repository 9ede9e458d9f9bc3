"""How a loss came out of the output of a model, read off the autograd graph so that it can be made again.

The graph is read when `backward()` begins. Each node between the loss and the model's output names its
operation and holds what else it needs: targets, weights, dimensions. What a node does not hold, such as the
target in `(output - target) ** 2`, follows from the value that the node above it has kept. A recipe is worth
nothing unless it gives the loss of the run: `verify` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerstep._torch import node_number
from layerstep._torch.graphs import dtype_of_output, variable_of
from layerstep._torch.saved import has_saved_tensor, saved_tensor, saved_word
from layerstep.doctor.loss_operations import BINARY, OPERATIONS, operation_of

__all__ = ["Constant", "NotRepeatable", "Recipe", "read_recipe"]

MOST_NODES = 400
CLOSE = 1e-6
"""How near the loss of a recipe must come to that of the run, relative to its size."""


class NotRepeatable(Exception):
    """The loss is made in a way that cannot be repeated; the message says what is in the way."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the loss takes besides the output: a target, a weight, a factor."""

    value: Tensor
    is_target: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    kind: str
    """`output`, `parameter` or `constant`."""
    number: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    run: Callable[..., Tensor]
    inputs: tuple[int, ...]


@dataclass(slots=True)
class Recipe:
    """The operations from the output of a model to its loss."""

    entries: list[_Source | _Step] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)

    @property
    def signature(self) -> tuple[str, ...]:
        """The same for two losses that were made in the same way."""
        return tuple(each.name if isinstance(each, _Step) else each.kind for each in self.entries)

    @property
    def targets(self) -> list[Tensor]:
        return [each.value for each in self.constants if each.is_target]

    @property
    def is_output(self) -> bool:
        """Does the model return the loss itself?"""
        return not self.constants and not any(isinstance(each, _Step) for each in self.entries)

    def loss(
        self,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, Tensor],
        constants: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """The loss of these outputs. `constants` stand for the recipe's own."""
        given = [each.value for each in self.constants] if constants is None else constants
        values: list[Tensor] = []
        for entry in self.entries:
            if isinstance(entry, _Step):
                values.append(entry.run(*(values[slot] for slot in entry.inputs)))
            elif entry.kind == "output":
                values.append(outputs[entry.number])
            elif entry.kind == "parameter":
                values.append(parameters[entry.name])
            else:
                values.append(given[entry.number])
        return values[-1]

    def verify(self, outputs: Sequence[Tensor], parameters: Mapping[str, Tensor], loss: Tensor) -> None:
        """Raise if the recipe does not give the loss of the run."""
        made, was = float(self.loss(outputs, parameters).detach()), float(loss.detach())
        room = CLOSE * max(abs(was), 1e-3) + 8 * torch.finfo(loss.dtype).eps * abs(was)
        if not (abs(made - was) <= room or (math.isnan(made) and math.isnan(was))):
            raise NotRepeatable(f"made again it is {made:.6g}, and it was {was:.6g}")


def read_recipe(
    loss: Tensor, outputs: Sequence[tuple[int, int]], values: Sequence[Tensor], names: Mapping[int, str]
) -> Recipe:
    """The recipe of a loss. `outputs`: the number of the node that made each output and its place there;
    `values`: those outputs, detached; `names`: the parameters of the model by the id of the tensor.
    """
    reader = _Reader({each: place for place, each in enumerate(outputs) if each[0]}, values, names)
    reader.slot_of(loss.grad_fn, loss.output_nr, loss.detach())
    if not any(isinstance(each, _Source) and each.kind == "output" for each in reader.recipe.entries):
        raise NotRepeatable("it does not come from the output of the model")
    return reader.recipe


class _Reader:
    """Follows the graph from the loss down to the outputs."""

    def __init__(
        self, outputs: dict[tuple[int, int], int], values: Sequence[Tensor], names: Mapping[int, str]
    ) -> None:
        self.recipe = Recipe()
        self._outputs = outputs
        self._given = values
        self._names = names
        self._slots: dict[tuple[int, int], int] = {}
        self._held: list[Any] = []
        """Nodes whose ids are in use: Python may give the id of a node that is gone to another."""
        self._values: dict[int, Tensor] = {}

    def slot_of(self, node: Any, place: int, known: Tensor | None) -> int:
        """Where the value that a node made is in the recipe. `known`: the value itself, if it was kept."""
        if (slot := self._slots.get((id(node), place))) is not None:
            return slot
        if len(self._held) > MOST_NODES:
            raise NotRepeatable(f"more than {MOST_NODES} operations lie between it and the model's output")
        self._held.append(node)
        number = self._outputs.get((node_number(node), place)) if node is not None else None
        if number is not None:
            slot = self._add(_Source("output", number), self._given[number])
        elif (variable := variable_of(node)) is not None:
            if id(variable) not in self._names:
                raise NotRepeatable("it has a tensor in it that is no parameter of the model")
            slot = self._add(_Source("parameter", name=self._names[id(variable)]), variable.detach())
        else:
            slot = self._operation(node, known)
        self._slots[id(node), place] = slot
        return slot

    def _operation(self, node: Any, known: Tensor | None) -> int:
        name = operation_of(node)
        if name in BINARY:
            return self._binary(node, name, known)
        if name not in OPERATIONS:
            raise NotRepeatable(f"{name or 'an operation'} in it is not known")
        operation = OPERATIONS[name]
        below = [(each, place) for each, place in node.next_functions if each is not None]
        if len(below) != 1:
            raise NotRepeatable(f"{name} in it has {len(below)} inputs")
        kept = saved_tensor(node, "self") if name in ("Pow", "Abs") else None
        inputs = [self.slot_of(*below[0], kept)]
        inputs += [
            self._constant(held, is_target=which == "target")
            for which in operation.tensors
            if (held := saved_tensor(node, which)) is not None
        ]
        has = tuple(which for which in operation.tensors if saved_tensor(node, which) is not None)
        return self._step(name, operation.make(node, has), inputs)

    def _binary(self, node: Any, name: str, known: Tensor | None) -> int:
        run = BINARY[name](node)
        (left, at_left), (right, at_right) = (*node.next_functions, (None, 0))[:2]
        if left is not None and right is not None:
            first = self.slot_of(left, at_left, saved_tensor(node, "self"))
            return self._step(name, run, [first, self.slot_of(right, at_right, saved_tensor(node, "other"))])
        if name in ("Mul", "Div"):
            held = saved_tensor(node, "other" if left is not None else "self")
            if held is None and left is not None and not has_saved_tensor(node, "other"):
                word = saved_word(node, "other")  # a plain number
                held = torch.tensor(float(word), dtype=torch.float64) if word is not None else None
            if held is None:
                raise NotRepeatable(f"{name} in it does not say by what")
            if held.ndim == 0:  # a number of Python; as a tensor it would widen the result
                held = held.to(dtype_of_output(node))
            if left is not None:
                slot = self.slot_of(left, at_left, None)
                is_target = operation_of(left) == "LogSoftmax" and held.ndim > 0  # targets as probabilities
                return self._step(name, run, [slot, self._constant(held, is_target=is_target)])
            constant = self._constant(held)
            return self._step(name, run, [constant, self.slot_of(right, at_right, None)])
        return self._missing(node, name, known)

    def _missing(self, node: Any, name: str, known: Tensor | None) -> int:
        """`output - target`: the node does not hold the target, but what it made was kept above it."""
        (left, at_left), (right, at_right) = (*node.next_functions, (None, 0))[:2]
        run = BINARY[name](node)
        slot = self.slot_of(*((left, at_left) if left is not None else (right, at_right)), None)
        if known is None and name == "Add":
            return slot  # `sum(…)` begins with zero; if it is another number, the loss does not come out
        if known is None:
            raise NotRepeatable(f"{name} in it does not say what it takes from")
        value, known = self._value(slot), known.detach()
        zero = torch.zeros_like(value)
        if left is not None:  # known = value ± alpha * other
            factor = run(zero, torch.ones_like(value))
            other = (known - value) / factor
            return self._step(name, run, [slot, self._constant(other, is_target=True)])
        other = known - run(zero, value)
        constant = self._constant(other, is_target=True)
        return self._step(name, run, [constant, slot])

    def _constant(self, value: Tensor, *, is_target: bool = False) -> int:
        self.recipe.constants.append(Constant(value.detach().clone(), is_target))
        return self._add(_Source("constant", len(self.recipe.constants) - 1), value.detach())

    def _step(self, name: str, run: Callable[..., Tensor], inputs: Iterable[int]) -> int:
        return self._add(_Step(name, run, tuple(inputs)))

    def _add(self, entry: _Source | _Step, value: Tensor | None = None) -> int:
        self.recipe.entries.append(entry)
        slot = len(self.recipe.entries) - 1
        if value is not None:
            self._values[slot] = value
        return slot

    def _value(self, slot: int) -> Tensor:
        if slot not in self._values:
            step = self.recipe.entries[slot]
            assert isinstance(step, _Step)
            self._values[slot] = step.run(*(self._value(each) for each in step.inputs))
        return self._values[slot]
