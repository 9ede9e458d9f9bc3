"""Where one step of a run ends and the next begins, for all that is measured step by step.

A step is a training step where an optimizer steps: from the end of one to the end of the next, with all its
micro-batches, and with the optimizers that take turns in it. Without one it is a forward of the main model.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from enum import Enum, auto

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from layerstep.module_paths.models import Model, Models
from layerstep.training_steps.steps import Stepped, Steps

__all__ = ["Borders", "Call", "Cycle", "End"]

ALONE = 20
"""Steps of the first optimizer without another, after which it is alone."""

CERTAIN = 2
"""After so many steps of one optimizer, others that are there are not waited for."""


class Call(Enum):
    """What an outermost call is to the steps."""

    INSIDE = auto()
    """A part of the step that runs."""
    FORWARD = auto()
    """It begins a step: a forward of the main model, and nothing is trained so far."""
    ASIDE = auto()
    """No part of a training step: a model that is trained is used without gradients between two of them."""


class End(Enum):
    """What the step of an optimizer is to the steps."""

    NONE = auto()
    TORN = auto()
    """A training step ends, but it is not known when it began, or another optimizer than so far ends it."""
    WHOLE = auto()


class Cycle:
    """Whose step ends a training step: of several optimizers, the last that steps before the first again.

    So a generator's backward is in one step with its forward, though the discriminator steps between them.
    """

    def __init__(self) -> None:
        self.is_new = False
        """Was it another until now? Then the step that ends is torn."""
        self._first = self._last = self._other = 0
        self._alone = self._away = 0

    def ends_with(self, number: int) -> bool:
        """An optimizer has stepped; does that end a training step?"""
        self.is_new = False
        if not self._first or number < self._first or self._away >= ALONE:
            self.is_new = self._away >= ALONE
            self._first, self._last, self._away = number, number, 0
        if number != self._first:
            self._other, self._alone, self._away = number, 0, self._away + 1
        else:
            self._alone, self._away = self._alone + 1, 0
            last = self._other or (self._first if self._alone > ALONE else self._last)
            self.is_new |= last != self._last
            self._last, self._other = last, 0
        return number == self._last


class Borders:
    """Told of outermost calls and of optimizers' steps; says which of them are borders."""

    def __init__(self, models: Models, training: Steps) -> None:
        self._models = models
        self._training = training
        self.start()

    def start(self) -> None:
        """Begin anew: nothing is known of what comes."""
        self.is_training = False
        """Has an optimizer stepped since?"""
        self.unit = ""
        """The name of the model whose forwards are the steps, as long as nothing is trained."""
        self.is_new_unit = False
        """Did the last call make another model the main one? Forwards before it were of less interest."""
        self.is_torn = False
        """Is a part of the training step that runs behind a border already?"""
        self._cycle = Cycle()
        self._members: list[Stepped] = []
        self._unit: weakref.ref[Model] | None = None
        self._sizes: weakref.WeakKeyDictionary[Model, int] = weakref.WeakKeyDictionary()
        self._found: list[weakref.ref[Optimizer]] = []
        self._trained: tuple[tuple[int, ...], set[int]] = ((), set())
        self._ends = 0

    @property
    def word(self) -> str:
        return "training step" if self.is_training else "forward"

    @property
    def unit_word(self) -> str:
        """`forward of encoder`, where it must be said which."""
        named = self.unit and len(self._models) > 1
        return f"forward of {self.unit}" if named and not self.is_training else self.word

    def called(self, module: nn.Module) -> Call:
        """An outermost module is called."""
        self.is_new_unit = False
        model = self._models.by_root(module)
        if model is None:
            return Call.INSIDE
        if self.is_training:
            is_used = not torch.is_grad_enabled() and self.is_trained(model)
            return Call.ASIDE if is_used else Call.INSIDE
        before = self._unit() if self._unit is not None else None
        if model is not before:
            if before is not None and self._weight(model) <= self._weight(before):
                return Call.INSIDE
            self._unit, self.unit = weakref.ref(model), model.name
            self.is_new_unit = before is not None
        return Call.FORWARD

    def is_trained(self, model: Model) -> bool:
        """Are parameters of it in the hands of an optimizer that has stepped?"""
        optimizers = [each.optimizer for each in self._training.optimizers]
        models = list(self._models)
        key = (*map(id, optimizers), 0, *map(id, models))
        if self._trained[0] != key:
            mine = _parameters(optimizer for optimizer in optimizers if optimizer is not None)
            self._trained = (key, {id(each) for each in models if _has(each, mine)})
        return id(model) in self._trained[1]

    def may_train(self) -> bool:
        """Is there an optimizer for what runs, though it has not stepped?

        It is searched for among all objects of Python, which takes 40 ms for 165,000 of them.
        """
        if not any(reference() is not None for reference in self._found):
            self._found = [weakref.ref(each) for each in self._optimizers()]
        return bool(self._found)

    def _optimizers(self) -> list[Optimizer]:
        """Those that are alive and have parameters of a known model."""
        found = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]
        weighty = [model for model in self._models if not model.is_helper]
        if not weighty:
            return found
        return [each for each in found if any(_has(model, _parameters([each])) for model in weighty)]

    def _others_wait(self) -> bool:
        """Is there an optimizer of other parameters that has not stepped yet, and may do so in each step?"""
        known = _parameters(optimizer for each in self._training.optimizers if (optimizer := each.optimizer))
        return any(not _parameters([each]) & known for each in self._optimizers())  # a wrapper shares them

    def begin_training(self) -> bool:
        """An optimizer is about to step; is it the first time?"""
        is_first, self.is_training = not self.is_training, True
        return is_first

    def stepped(self, stepped: Stepped) -> End:
        """An optimizer has stepped."""
        if any(each.optimizer is None for each in self._members):  # another has taken its place
            self._cycle, self._members = Cycle(), []
        if stepped not in self._members:
            self._members.append(stepped)
        is_over = self._cycle.ends_with(stepped.number)
        self.is_torn |= self._cycle.is_new
        if not is_over:
            return End.NONE
        is_torn, self.is_torn = self.is_torn, False
        self._ends += 1
        if self._ends <= CERTAIN and not is_torn:
            is_torn = self._others_wait()
        return End.TORN if is_torn else End.WHOLE

    def _weight(self, model: Model) -> int:
        """The parameters of a model: the one with most of them is the main one."""
        if model not in self._sizes:
            root = model.root
            self._sizes[model] = sum(map(_size, root.parameters())) if root is not None else 0
        return self._sizes[model]


def _parameters(optimizers: Iterable[Optimizer]) -> set[int]:
    """The numbers of all parameters that optimizers have."""
    found = set[int]()
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            found.update(map(id, group.get("params", ())))
    return found


def _has(model: Model, parameters: set[int]) -> bool:
    root = model.root
    return root is not None and any(id(parameter) in parameters for parameter in root.parameters())


def _size(parameter: torch.Tensor) -> int:
    try:
        return parameter.numel()
    except Exception:  # a lazy parameter has no size yet
        return 0
