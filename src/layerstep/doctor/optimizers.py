"""Optimizers: whose parameters they have, which gradients they get, and what each step changes."""

from __future__ import annotations

import math
import weakref
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from layerstep._torch.guards import functions_off
from layerstep.doctor.bad_origins import Born
from layerstep.doctor.bad_values import is_bad
from layerstep.doctor.facts import ParameterLook, StepFacts
from layerstep.doctor.finding import Place
from layerstep.doctor.first_parameters import FIRST, first_facts
from layerstep.doctor.kept_gradients import KeptGradients
from layerstep.doctor.live_graphs import LiveGraphs
from layerstep.doctor.measuring import Copy, copy_of, is_readable, look_at
from layerstep.doctor.parameter_groups import ParameterGroups
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.schedulers import Schedulers
from layerstep.doctor.seen import Seen
from layerstep.doctor.series import median
from layerstep.doctor.traces import Traces
from layerstep.gradients.no_gradient import biases_before_norms
from layerstep.gradients.recorder import named_parameters
from layerstep.gradients.sizes import is_plain, measure
from layerstep.training_steps.steps import Stepped

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Optimizers"]

FIRST_ONES = 8
"""The parameters nearest the input. The smallest of them is asked in each step if its gradient is finite."""
COPIED = 256 << 20
"""Bytes of parameters that are copied before a step, at most."""
TINY = 0.1
"""A weight that begins below this share of the usual size may grow by large shares of its own."""


class _Named(NamedTuple):
    name: str
    reference: weakref.ref[Tensor]


class Optimizers:
    """Makes facts of the steps."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: dict[int, str] = {}
        self._known: dict[int, tuple[object, list[_Named]]] = {}
        self._copies: dict[str, Copy] = {}
        self._sizes: dict[str, tuple[float, float, float] | None] = {}
        self._kept = KeptGradients()
        self._scales: dict[tuple[str, int], float] = {}
        self._trained: set[int] = set()
        self.schedulers = Schedulers()
        self._traces = Traces(session)
        self._backward: dict[int, float] = {}
        """The norms of gradients after the last `backward()`, by the id of the parameter."""
        self._emptied = False
        self._graded: set[int] = set()
        """The parameters that had a gradient before the step that is looked at."""
        self._bad: tuple[str, ...] = ()
        self.born: Born | None = None
        """Where gradients that are not finite began, once that was looked for."""
        self._groups = ParameterGroups()
        self._last: dict[int, int] = {}
        """The last step of each optimizer that was watched."""

    @property
    def has_bad_gradients(self) -> bool:
        """Has the step that is about to be taken gradients that are not finite?"""
        return bool(self._bad)

    # --- the beginning ---

    def begin(self, run: RunFacts) -> None:
        """The first step is about to be taken: note every parameter as it was initialised."""
        self._look_up_names()
        self.schedulers.find(self._session.run.training)
        self._traces.update()
        owners = self._owners()
        models = {
            id(p): model.name
            for model in self._session.run.models
            if model.root is not None
            for p in model.root.parameters()
        }
        dead = biases_before_norms(self._session)
        for each in named_parameters(self._session):
            parameter = each.parameter
            module = self._session.run.models.at(each.layer)
            run.parameters[each.name] = first_facts(
                each.name,
                parameter,
                module=each.layer,
                kind=type(module).__name__ if module is not None else "",
                model=models.get(id(parameter), ""),
                optimizers=owners.get(id(parameter), ()),
                before_norm=id(parameter) in dead,
            )
        known = {id(each.parameter) for each in named_parameters(self._session)}
        own = [pair for each in self._session.run.training.optimizers for pair in self._parameters(each)]
        for name, parameter in (*own, *(self._traces.loose.variables() if own else ())):
            if id(parameter) not in known and name not in run.parameters:
                run.parameters[name] = first_facts(name, parameter, optimizers=owners.get(id(parameter), ()))

    def _owners(self) -> dict[int, list[int]]:
        """The numbers of the optimizers of each parameter; 0 for one that has not stepped yet."""
        found: dict[int, list[int]] = {}
        known = {id(each.optimizer): each.number for each in self._session.run.training.optimizers}
        for optimizer in self._every_optimizer():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    found.setdefault(id(parameter), []).append(known.get(id(optimizer), 0))
        return found

    def _every_optimizer(self) -> list[torch.optim.Optimizer]:
        stepped = [each.optimizer for each in self._session.run.training.optimizers]
        every = {id(each): each for each in (*stepped, *self.schedulers.optimizers) if each is not None}
        return list(every.values())

    def _look_up_names(self) -> None:
        self._names = {id(p): name for name, p in self._traces.loose.variables()}
        self._names.update({id(each.parameter): each.name for each in named_parameters(self._session)})

    def trains(self, module: nn.Module) -> bool:
        """Does an optimizer that has stepped have parameters of this model?"""
        with functions_off():
            first = next((p for p in module.parameters() if p.requires_grad), None)
        return first is not None and any(id(p) in self._trained for p in module.parameters())

    # --- are gradients cleared between steps? ---

    def backward_begins(self, loss: Tensor, frame: FrameType, *, deep: bool) -> None:
        """A backward pass is about to add to gradients."""
        self._kept.backward_begins()
        if deep:
            self._traces.look(loss, frame)

    def backward_ended(self, *, deep: bool) -> None:
        """The pass has added to gradients."""
        self._backward = {}
        if deep:
            having = [(id(p), p.grad) for _, p in self._traces.update() if p.grad is not None]
            sizes = measure([gradient for _, gradient in having])
            self._backward = {key: size.norm for (key, _), size in zip(having, sizes, strict=True)}
        self._kept.backward_ended()
        first = (each.reference() for _, named in self._known.values() for each in named[:FIRST_ONES])
        self._kept.note_pass(p for p in first if p is not None)

    # --- steps that were not watched ---

    def wake(self) -> None:
        """Steps were not watched: what was known of gradients is too old."""
        self._kept.forget()

    def _unseen(self, stepped: Stepped) -> int:
        return stepped.steps - self._last.get(stepped.number, stepped.steps - 1) - 1

    def unseen_step(self, run: RunFacts, training_step: int) -> StepFacts | None:
        """A step for the last ones of a run, if they were not watched and parameters are not finite now.

        The models are asked, as the optimizer may be gone by then.
        """
        told = [each.last for each in run.optimizers.values() if each.last is not None]
        last = max(told, key=lambda step: step.training_step, default=None)
        bad = [name for name, p in self.named() if is_bad(p)]
        if last is None or not bad or last.training_step >= training_step:
            return None
        unseen = training_step - last.training_step
        return StepFacts(
            last.number + unseen,
            training_step,
            last.optimizer,
            last.kind,
            last.groups,
            losses=(),
            forwards=(),
            seconds=0.0,
            parameters={name: ParameterLook(has_gradient=True, is_finite=False) for name in bad},
            unseen=unseen,
        )

    # --- one step ---

    def before_step(self, stepped: Stepped, *, deep: bool) -> None:
        """The gradients are complete."""
        self._copies.clear()
        self._sizes.clear()
        named = self._parameters(stepped)
        self._bad = self._bad_gradients(named)
        self._emptied = False
        if not deep:
            return
        with_gradient = [(name, p) for name, p in named if p.grad is not None]
        sizes = measure([p.grad for _, p in with_gradient if p.grad is not None])
        self._graded = {
            id(p) for _, p in self._traces.update() if p.grad is not None and bool(p.grad.detach().any())
        }
        self._sizes = {name: None for name, _ in named}
        self._sizes.update(
            {
                name: (size.mean, size.most, size.norm)
                for (name, _), size in zip(with_gradient, sizes, strict=True)
            }
        )
        self._emptied = not any(size.norm for size in sizes) and bool(self._norm_after_backward(named))
        room = COPIED
        for name, parameter in named:
            if is_plain(parameter) and is_readable(parameter) and room > 0:
                copy = self._copies[name] = copy_of(parameter)
                room -= copy.values.numel() * copy.values.element_size()

    def after_step(
        self,
        stepped: Stepped,
        seen: Seen,
        *,
        deep: bool,
        training_step: int,
        seconds: float,
        graphs: LiveGraphs,
        run: RunFacts,
        shared: bool = False,
    ) -> StepFacts:
        """The step is done."""
        named = self._parameters(stepped)
        looks = self._look_at(stepped, named, run) if deep else {}
        self.schedulers.tell(run)
        untouched, orphans = self._neglected() if deep else ((), ())
        kept, lost = self._kept.names(stepped.number), self._kept.take_lost()
        self._kept.keep(stepped.number, named)
        self._trained.update(id(p) for _, p in named)
        unseen, self._last[stepped.number] = self._unseen(stepped), stepped.steps
        return StepFacts(
            stepped.steps,
            training_step,
            stepped.number,
            stepped.kind,
            self._groups.facts(stepped, self._names),
            seen.losses,
            seen.forwards,
            seconds,
            is_looked_at=deep,
            grad_norm=math.hypot(*(look.norm for look in looks.values())) if looks else None,
            parameters=looks,
            activations=seen.activations,
            kept_gradients=kept,
            untouched=untouched,
            scaler=self.schedulers.scale(),
            orphans=orphans,
            loose=tuple(name for name, _ in self._traces.loose.named()) if deep else (),
            strangers=self._strangers(named) if deep else (),
            backward_norm=self._norm_after_backward(named) if deep else None,
            emptied=self._emptied,
            calls=seen.calls,
            bad_gradients=self._bad,
            bad_at=self.born.where if self.born is not None else None,
            bad_words=self.born.words if self.born is not None else "",
            layer_inputs=seen.layer_inputs,
            live_graphs=graphs.look(training_step),
            held_by=graphs.held_by,
            is_shared=shared,
            lost_passes=lost,
            unseen=unseen,
        )

    def _look_at(
        self, stepped: Stepped, named: list[tuple[str, Tensor]], run: RunFacts
    ) -> dict[str, ParameterLook]:
        looks = {
            name: look_at(p, self._copies.get(name), self._sizes.get(name), stuck=self._traces.stuck(p))
            for name, p in named
        }
        matrices = [
            look.update
            for name, look in looks.items()
            if math.isfinite(look.update) and _is_random_matrix(run, name) and look.has_gradient
        ]
        if matrices:
            run.optimizer(stepped.number, stepped.kind).update.add(stepped.steps, median(matrices))
        return looks

    def _norm_after_backward(self, named: list[tuple[str, Tensor]]) -> float | None:
        found = [self._backward[id(p)] for _, p in named if id(p) in self._backward]
        return math.hypot(*found) if found else None

    @staticmethod
    def _bad_gradients(named: list[tuple[str, Tensor]]) -> tuple[str, ...]:
        """The parameters whose gradients are not finite. One near the input is asked in each step: what is
        not finite spreads in the backward pass towards the input.
        """
        first = [p.grad for _, p in named[:FIRST_ONES] if p.grad is not None]
        asked = next((grad for grad in first if grad.numel() <= FIRST), None)
        if asked is None:
            asked = min(first, key=lambda grad: grad.numel(), default=None)
        if asked is None or not is_bad(asked):
            return ()
        return tuple(name for name, p in named if p.grad is not None and is_bad(p.grad))

    def with_gradients(self) -> tuple[list[Tensor], bool]:
        """Every parameter that has a gradient, and whether some of them are in no model."""
        variables = [p for _, p in self._traces.loose.variables()]
        known = {id(p): p for p in (*(p for _, p in self.named()), *variables)}
        return [p for p in known.values() if p.grad is not None], bool(variables)

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

    def _neglected(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters with a gradient that nothing has written to, and those that are in no optimizer."""
        owned = self._owners()
        variables = {id(p) for _, p in self._traces.loose.variables()}
        # Tensors of variables are data, as the points of an equation, unless an optimizer has some of them.
        data = variables if variables.isdisjoint(owned) else set()
        with_gradient = [
            (name, p)
            for name, p in self._traces.update()
            if id(p) not in data and p.requires_grad and id(p) in self._graded
        ]
        untouched = tuple(name for name, p in with_gradient if self._traces.is_untouched(p))
        return untouched, tuple(name for name, p in with_gradient if id(p) not in owned)

    def _strangers(self, named: list[tuple[str, Tensor]]) -> tuple[str, ...]:
        return tuple(name for name, p in named if id(p) not in self._names and p.grad is None)

    # --- scales of losses ---

    def note_scale(self, place: Place, scale: float) -> None:
        """The factor of the loss at this line; what of it is a gradient scaler's changes by itself."""
        self._scales[place.file, place.line] = scale / (self.schedulers.scale() or 1.0)

    def last_scale(self, place: Place) -> float:
        """The factor of the loss at this line when it was last looked at; that of a scaler is asked."""
        return (self.schedulers.scale() or 1.0) * self._scales.get((place.file, place.line), 1.0)


def _is_random_matrix(run: RunFacts, name: str) -> bool:
    """One that begins at zero, at a constant or far below the usual size has a large share of change for a
    while: that is no sign. The usual size is 1 / sqrt(inputs); an embedding has no inputs to add up.
    """
    known = run.parameters.get(name)
    if known is None or not known.is_matrix or not known.std > 0:
        return False
    inputs = 1 if "Embedding" in known.kind else math.prod(known.shape[1:])
    return inputs == 1 or known.std * math.sqrt(inputs) > TINY
