"""Optimizers: whose parameters they have, which gradients they get, and what each step changes."""

from __future__ import annotations

import gc
import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from layerstep._torch.tensors import version_of
from layerstep.doctor.bad_values import is_bad
from layerstep.doctor.facts import (
    ActivationFacts,
    ForwardFacts,
    GroupFacts,
    LossFacts,
    ParameterFacts,
    ParameterLook,
    StepFacts,
)
from layerstep.doctor.finding import Place
from layerstep.doctor.measuring import Copy, copy_of, is_readable, look_at
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.gradients.no_gradient import biases_before_norms
from layerstep.gradients.recorder import named_parameters
from layerstep.gradients.sizes import is_plain, measure
from layerstep.tensors.observing import checksum
from layerstep.tensors.shapes import dtype_name
from layerstep.tensors.summary import summarize
from layerstep.training_steps.steps import Stepped

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Optimizers"]

ASKED = 4
"""Parameters of each optimizer whose gradients are asked in every step whether they were cleared."""
FIRST_ONES = 8
"""The parameters nearest the input. The smallest of them is asked in each step if its gradient is finite."""
COPIED = 256 << 20
"""Bytes of parameters that are copied before a step, at most."""
FIRST = 1 << 16
"""Elements that the statistics of an initial weight are taken from."""


class _Named(NamedTuple):
    name: str
    reference: weakref.ref[Tensor]


class _Kept(NamedTuple):
    """A gradient after a step, to tell at the next one whether it was cleared between them."""

    name: str
    parameter: weakref.ref[Tensor]
    gradient: int
    version: int


class Optimizers:
    """Makes facts of the steps."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: dict[int, str] = {}
        self._known: dict[int, tuple[object, list[_Named]]] = {}
        self._copies: dict[str, Copy] = {}
        self._sizes: dict[str, tuple[float, float, float] | None] = {}
        self._kept: dict[int, list[_Kept]] = {}
        self._cleared: dict[int, bool] = {}
        self._versions: dict[int, int] = {}
        self._scales: dict[tuple[str, int], float] = {}
        self._trained: set[int] = set()
        self._schedulers: list[tuple[weakref.ref[LRScheduler], str, int]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._bad: tuple[str, ...] = ()

    # --- the beginning ---

    def begin(self, run: RunFacts) -> None:
        """The first step is about to be taken: note every parameter as it was initialised."""
        self._look_up_names()
        self._find_helpers()
        owners = self._owners()
        dead = biases_before_norms(self._session)
        for each in named_parameters(self._session):
            parameter = each.parameter
            module = self._session.run.models.at(each.layer)
            stats = summarize(parameter, limit=FIRST, brief=True).stats
            run.parameters[each.name] = ParameterFacts(
                each.name,
                each.layer,
                type(module).__name__ if module is not None else "",
                each.name.rpartition(".")[2],
                tuple(parameter.shape),
                dtype_name(parameter.dtype),
                parameter.requires_grad,
                tuple(owners.get(id(parameter), ())),
                mean=stats.mean if stats is not None and stats.mean is not None else math.nan,
                std=stats.std if stats is not None and stats.std is not None else math.nan,
                checksum=checksum(parameter) if is_plain(parameter) and is_readable(parameter) else 0,
                before_norm=id(parameter) in dead,
            )

    def _owners(self) -> dict[int, list[int]]:
        """The numbers of the optimizers of each parameter, also of those that have not stepped yet."""
        found: dict[int, list[int]] = {}
        known = {id(each.optimizer): each.number for each in self._session.run.training.optimizers}
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.optim.Optimizer):
                for group in getattr(thing, "param_groups", ()):
                    for parameter in group.get("params", ()):
                        found.setdefault(id(parameter), []).append(known.get(id(thing), 0))
        return found

    def _find_helpers(self) -> None:
        """The schedulers and gradient scalers of the program. The search takes 40 ms for 165,000 objects."""
        numbers = {id(each.optimizer): each.number for each in self._session.run.training.optimizers}
        for thing in gc.get_objects():
            kind = type(thing)
            if issubclass(kind, LRScheduler):
                number = numbers.get(id(getattr(thing, "optimizer", None)), 0)
                self._schedulers.append((weakref.ref(thing), kind.__name__, number))
            elif kind.__name__ == "GradScaler" and isinstance(thing, torch.amp.GradScaler):
                self._scalers.append(weakref.ref(thing))

    def look_at_schedulers(self, run: RunFacts) -> None:
        """How often each scheduler was stepped so far."""
        run.schedulers = [
            (kind, number, int(getattr(scheduler, "last_epoch", 0)))
            for reference, kind, number in self._schedulers
            if (scheduler := reference()) is not None
        ] or run.schedulers

    def _look_up_names(self) -> None:
        self._names = {id(each.parameter): each.name for each in named_parameters(self._session)}

    def trains(self, module: nn.Module) -> bool:
        """Does an optimizer that has stepped have parameters of this model?"""
        first = next((p for p in module.parameters() if p.requires_grad), None)
        return first is not None and any(id(p) in self._trained for p in module.parameters())

    # --- are gradients cleared between steps? ---

    def backward_begins(self) -> None:
        """A gradient that is another object now, or was written since, has been cleared."""
        for number, kept in self._kept.items():
            if not self._cleared.get(number, True):
                self._cleared[number] = any(_has_changed(each) for each in kept)

    def backward_ended(self) -> None:
        """The pass has added to gradients, which is no clearing."""
        self._kept = {
            number: [now for each in kept if (now := _kept(each.name, each.parameter)) is not None]
            for number, kept in self._kept.items()
        }

    # --- one step ---

    def before_step(self, stepped: Stepped, *, deep: bool) -> None:
        """The gradients are complete."""
        self._copies.clear()
        self._sizes.clear()
        named = self._parameters(stepped)
        self._bad = self._bad_gradients(named)
        if not deep:
            return
        with_gradient = [(name, p) for name, p in named if p.grad is not None]
        sizes = measure([p.grad for _, p in with_gradient if p.grad is not None])
        self._sizes = {name: None for name, _ in named}
        self._sizes.update(
            {
                name: (size.mean, size.most, size.norm)
                for (name, _), size in zip(with_gradient, sizes, strict=True)
            }
        )
        room = COPIED
        for name, parameter in named:
            if is_plain(parameter) and is_readable(parameter) and room > 0:
                copy = self._copies[name] = copy_of(parameter)
                room -= copy.values.numel() * copy.values.element_size()

    def after_step(
        self,
        stepped: Stepped,
        *,
        deep: bool,
        training_step: int,
        losses: tuple[LossFacts, ...],
        forwards: tuple[ForwardFacts, ...],
        seconds: float,
        activations: tuple[ActivationFacts, ...],
        run: RunFacts,
    ) -> StepFacts:
        """The step is done."""
        named = self._parameters(stepped)
        looks: dict[str, ParameterLook] = {}
        if deep:
            looks = {name: look_at(p, self._copies.get(name), self._sizes.get(name)) for name, p in named}
            matrices = [
                look.update
                for name, look in looks.items()
                if math.isfinite(look.update) and _is_matrix(run, name) and look.has_gradient
            ]
            if matrices:
                run.optimizer(stepped.number, stepped.kind).update.add(stepped.steps, median(matrices))
            self.look_at_schedulers(run)
        kept = () if self._cleared.get(stepped.number, True) else self._kept_names(stepped)
        self._keep_gradients(stepped, named)
        self._trained.update(id(p) for _, p in named)
        return StepFacts(
            stepped.steps,
            training_step,
            stepped.number,
            stepped.kind,
            self._groups(stepped),
            losses,
            forwards,
            seconds,
            is_looked_at=deep,
            grad_norm=math.hypot(*(look.norm for look in looks.values())) if looks else None,
            parameters=looks,
            activations=activations,
            kept_gradients=kept,
            untouched=self._untouched(deep=deep),
            scaler=self._scale_of_scaler(),
            bad_gradients=self._bad,
        )

    @staticmethod
    def _bad_gradients(named: list[tuple[str, Tensor]]) -> tuple[str, ...]:
        """The parameters whose gradients are not finite. One small one near the input is asked in each step:
        what is not finite spreads in the backward pass towards the input.
        """
        first = [p.grad for _, p in named[:FIRST_ONES] if p.grad is not None]
        asked = min(first, key=lambda grad: grad.numel(), default=None)
        if asked is None or not is_bad(asked):
            return ()
        return tuple(name for name, p in named if p.grad is not None and is_bad(p.grad))

    def named(self) -> list[tuple[str, Tensor]]:
        """Every parameter by name."""
        return [(each.name, each.parameter) for each in named_parameters(self._session)]

    def has_part_of(self, stepped: Stepped, module: nn.Module) -> bool:
        """Does an optimizer have parameters of a model?"""
        mine = {id(p) for _, p in self._parameters(stepped)}
        return any(id(p) in mine for p in module.parameters())

    def _parameters(self, stepped: Stepped) -> list[tuple[str, Tensor]]:
        """The parameters of an optimizer by name; looked up again if they have changed."""
        optimizer = stepped.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        given = [p for group in groups for p in group["params"]]
        key = tuple(map(id, given))
        known = self._known.get(stepped.number)
        if known is None or known[0] != key:
            if any(id(p) not in self._names for p in given):
                self._look_up_names()
            named = [
                _Named(self._names.get(id(p), f"{stepped.kind}.{place}"), weakref.ref(p))
                for place, p in enumerate(given)
            ]
            known = self._known[stepped.number] = (key, named)
        return [(name, p) for name, reference in known[1] if (p := reference()) is not None]

    def _groups(self, stepped: Stepped) -> tuple[GroupFacts, ...]:
        optimizer = stepped.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        return tuple(
            GroupFacts(
                float(group.get("lr", 0.0)),
                float(group.get("weight_decay", 0.0) or 0.0),
                tuple(self._names.get(id(p), "") for p in group["params"])
                if len(group["params"]) <= 512
                else (),
                float(group["initial_lr"]) if "initial_lr" in group else None,
            )
            for group in groups
        )

    def _keep_gradients(self, stepped: Stepped, named: list[tuple[str, Tensor]]) -> None:
        with_gradient = [(name, p) for name, p in named if p.grad is not None]
        chosen = with_gradient[:: max(1, -(-len(with_gradient) // ASKED))]
        found = [_kept(name, weakref.ref(p)) for name, p in chosen]
        self._kept[stepped.number] = [each for each in found if each is not None]
        self._cleared[stepped.number] = not self._kept[stepped.number]

    def _kept_names(self, stepped: Stepped) -> tuple[str, ...]:
        """The gradients that were there before and are not zero."""
        found = []
        for each in self._kept.get(stepped.number, ()):
            parameter = each.parameter()
            if parameter is not None and parameter.grad is not None and bool(parameter.grad.detach().any()):
                found.append(each.name)
        return tuple(found)

    def _untouched(self, *, deep: bool) -> tuple[str, ...]:
        """Parameters with a gradient that nothing has written to since the training began."""
        if not deep:
            return ()
        found = []
        for each in named_parameters(self._session):
            parameter = each.parameter
            version = self._versions.setdefault(id(parameter), version_of(parameter))
            if not parameter.requires_grad or parameter.grad is None or version_of(parameter) < 0:
                continue
            if version == version_of(parameter) and bool(parameter.grad.detach().any()):
                found.append(each.name)
        return tuple(found)

    def _scale_of_scaler(self) -> float | None:
        for reference in self._scalers:
            scaler = reference()
            if scaler is not None and scaler.is_enabled():
                return float(scaler.get_scale())
        return None

    # --- scales of losses ---

    def note_scale(self, place: Place, scale: float) -> None:
        """The factor of the loss at this line."""
        self._scales[place.file, place.line] = scale

    def last_scale(self, place: Place) -> float:
        """The factor of the loss at this line when it was last looked at; that of a scaler is asked."""
        return self._scale_of_scaler() or self._scales.get((place.file, place.line), 1.0)


def _kept(name: str, reference: weakref.ref[Tensor]) -> _Kept | None:
    parameter = reference()
    gradient = parameter.grad if parameter is not None else None
    return _Kept(name, reference, id(gradient), version_of(gradient)) if gradient is not None else None


def _has_changed(kept: _Kept) -> bool:
    parameter = kept.parameter()
    gradient = parameter.grad if parameter is not None else None
    return gradient is None or id(gradient) != kept.gradient or version_of(gradient) != kept.version


def _is_matrix(run: RunFacts, name: str) -> bool:
    known = run.parameters.get(name)
    return known is not None and known.is_matrix
