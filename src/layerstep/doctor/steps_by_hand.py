"""Steps that the program takes without an optimizer of torch: `p -= rate * p.grad`, or none at all.

Between two backward passes the parameters have changed, and no optimizer has stepped: that is a step. It is
known when the next pass begins, so what belongs to it is kept until then. If nothing has changed after many
passes, each of them counts as a step that does nothing: the rules say so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from layerstep._torch.tensors import version_of
from layerstep.doctor.seen import Seen
from layerstep.training_steps.steps import Stepped, Steps

__all__ = ["KIND", "StepsByHand"]

KIND = "by hand"
NUMBER = 1
ASKED = 4
"""Parameters that are asked whether they have changed."""
ELEMENTS = 64
MANY = 64
"""Passes without any change: gradients are not added up over so many."""


class _Group:
    """Stands for the optimizer that is not there: it has parameters, and no rate."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters)}]


class StepsByHand:
    """Tells at each backward pass whether a step was taken since the one before."""

    def __init__(self) -> None:
        self._asked: list[tuple[weakref.ref[Tensor], int, Tensor]] = []
        self._passes = 0
        self.has_changed = False
        """Has the program ever changed a parameter?"""
        self._group: _Group | None = None
        self._held: tuple[Seen, bool] | None = None
        self.stepped: Stepped | None = None
        """The step by hand, once the program is known to take them."""

    @property
    def steps(self) -> int:
        return self.stepped.steps if self.stepped is not None else 0

    def is_asked(self, training: Steps) -> bool:
        """Has no optimizer of torch stepped in this run?"""
        return not training.total

    def keep(self, seen: Seen, *, deep: bool) -> None:
        """What belongs to the step, if one follows; gradients of several passes may be added up for it."""
        self._held = (self._held[0].and_then(seen) if self._held is not None else seen), deep

    def take(self) -> tuple[Seen, bool] | None:
        """What was kept, once."""
        taken, self._held = self._held, None
        return taken

    def begins(self) -> bool:
        """A backward pass begins: has the program taken a step since the last one?"""
        has_stepped = any(map(_has_changed, self._asked))
        self.has_changed |= has_stepped
        return has_stepped or (self.is_on and not self.has_changed)

    @property
    def is_on(self) -> bool:
        """Are steps taken by hand, or never?"""
        return self.has_changed or self._passes >= MANY

    def ended(self, with_gradients: Callable[[], tuple[list[Tensor], bool]]) -> None:
        """The pass has ended. Which parameters have a gradient is asked until steps are known, and whether
        tensors of no model have one: passes that change nothing may be made for these.
        """
        known = self._group
        parameters, has_data = (known.param_groups[0]["params"], False) if known else with_gradients()
        self._passes = 0 if has_data and not self.has_changed else self._passes + 1
        chosen = parameters[:: max(1, len(parameters) // ASKED)][:ASKED]
        self._asked = [(weakref.ref(p), version_of(p), _some(p)) for p in chosen]
        if self.is_on and self._group is None and parameters:
            self._group = _Group(parameters)
            reference: Any = weakref.ref(self._group)
            self.stepped = Stepped(NUMBER, KIND, reference, max(self._passes - 1, 0))


def _has_changed(asked: tuple[weakref.ref[Tensor], int, Tensor]) -> bool:
    parameter, (_, version, values) = asked[0](), asked
    if parameter is None:
        return False
    return version_of(parameter) != version or not torch.equal(_some(parameter), values)


def _some(parameter: Tensor) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // ELEMENTS))].clone()
