"""The schedulers and gradient scalers of the program: found once, when the training begins."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from layerstep._torch.schedulers import parts_of_scheduler, times_stepped
from layerstep.doctor.facts import SchedulerFacts
from layerstep.doctor.run_facts import RunFacts
from layerstep.training_steps.steps import Steps

__all__ = ["Schedulers"]


class _Known(NamedTuple):
    reference: weakref.ref[LRScheduler]
    kind: str
    optimizer: int
    first: int
    """How often it had stepped when the training began."""
    was_early: bool
    is_part: bool


class Schedulers:
    """Finds the optimizers, schedulers and gradient scalers, and makes facts of them."""

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._told: dict[int, SchedulerFacts] = {}

    def find(self, training: Steps) -> None:
        """Search the objects of the program. It takes 40 ms for 165,000 of them."""
        numbers = {id(each.optimizer): each.number for each in training.optimizers}
        schedulers: list[LRScheduler] = []
        for thing in gc.get_objects():
            kind = type(thing)
            if issubclass(kind, LRScheduler):
                schedulers.append(thing)
            elif issubclass(kind, Optimizer):
                self._optimizers.append(weakref.ref(thing))
            elif kind.__name__ == "GradScaler" and isinstance(thing, torch.amp.GradScaler):
                self._scalers.append(weakref.ref(thing))
        parts = {id(part) for each in schedulers for part in parts_of_scheduler(each)}
        is_scaled = self.scale() is not None
        for scheduler in schedulers:
            optimizer = getattr(scheduler, "optimizer", None)
            self._known.append(
                _Known(
                    weakref.ref(scheduler),
                    type(scheduler).__name__,
                    numbers.get(id(optimizer), 0),
                    int(getattr(scheduler, "last_epoch", 0)),
                    _was_early(scheduler) and not is_scaled,
                    id(scheduler) in parts,
                )
            )

    def tell(self, run: RunFacts) -> None:
        """How often each scheduler was stepped so far. One that is gone counts as it was last."""
        for place, known in enumerate(self._known):
            scheduler = known.reference()
            if scheduler is None:
                self._told[place] = replace(self._told[place], is_gone=True)
                continue
            steps = int(getattr(scheduler, "last_epoch", 0)) - known.first
            if place not in self._told or self._told[place].steps != steps:
                self._told[place] = SchedulerFacts(
                    known.kind, known.optimizer, steps, was_early=known.was_early, is_part=known.is_part
                )
        run.schedulers = list(self._told.values())

    def scale(self) -> float | None:
        """The scale of an enabled gradient scaler."""
        for reference in self._scalers:
            scaler = reference()
            if scaler is not None and scaler.is_enabled():
                return float(scaler.get_scale())
        return None

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were there when the training began, stepped or not."""
        return [found for reference in self._optimizers if (found := reference()) is not None]


def _was_early(scheduler: LRScheduler) -> bool:
    """Has it stepped just once, before the first step of its optimizer?

    One that goes on from a checkpoint has stepped more often, or its optimizer has a state.
    """
    optimizer = getattr(scheduler, "optimizer", None)
    is_once = times_stepped(scheduler) == 2  # its constructor counts as one
    return is_once and optimizer is not None and not getattr(optimizer, "state", None)
