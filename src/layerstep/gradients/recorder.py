"""Records gradients at each step of an optimizer. It only reads."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from layerstep._torch import below_everything, foreach_subtract, is_tracing, own_parameters
from layerstep._torch.guards import functions_off
from layerstep._torch.tensors import version_of
from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.gradients.log import GradientLog
from layerstep.gradients.sizes import is_plain, measure, norms
from layerstep.tensors.shapes import attempt
from layerstep.training_steps.steps import Stepped

__all__ = ["GradientRecorder", "NamedParameter", "RecordedGradients", "named_parameters"]

PROBES = 4
STALE_AFTER = 2
"""How many steps in a row must find a gradient that was only added to."""


class NamedParameter(NamedTuple):
    """A parameter, its name, and the path of the module that owns it."""

    name: str
    layer: str
    parameter: torch.Tensor


class _Probe(NamedTuple):
    """A gradient right after a step, to see at the next one whether it was only added to."""

    name: str
    parameter: weakref.ref[torch.Tensor]
    gradient: weakref.ref[torch.Tensor]
    version: int


def named_parameters(session: Session) -> list[NamedParameter]:
    """Every parameter of every model, once, by its first name."""
    found: dict[int, NamedParameter] = {}
    for path, module in session.run.models.everything():
        for name, parameter in own_parameters(module):
            found.setdefault(
                id(parameter), NamedParameter(f"{path}.{name}" if path else name, path, parameter)
            )
    return list(found.values())


class RecordedGradients(Instrument):
    """What `grad record` keeps for a session."""

    def __init__(self, session: Session) -> None:
        self.recorder: GradientRecorder | None = None


class GradientRecorder:
    """Keeps a log of the gradients in every N-th training step, while the session is attached."""

    def __init__(self, session: Session, *, every: int, updates: bool) -> None:
        self.log = GradientLog(budget=session.run.config.track_bytes)
        self.every = every
        self.updates = updates
        self._session = session
        self._known: dict[int, tuple[object, list[tuple[str, weakref.ref[torch.Tensor]]]]] = {}
        self._before: tuple[list[str], list[torch.Tensor], list[torch.Tensor]] = ([], [], [])
        self._probes: list[_Probe] = []
        self._streak = 0

    @property
    def is_on(self) -> bool:
        return self.before in self._session.run.training.before

    def start(self) -> None:
        if not self.is_on:
            self._session.run.training.before.append(self.before)
            self._session.run.training.after.append(self.after)

    def stop(self) -> None:
        if self.is_on:
            self._session.run.training.before.remove(self.before)
            self._session.run.training.after.remove(self.after)
        self._probes = []

    def before(self, stepped: Stepped) -> None:
        """The gradients are complete: measure them."""
        if is_tracing():
            return
        leads = self._leads(stepped)
        step = self._session.run.training.count + (1 if leads else 0)
        if leads:
            self._look_at_probes(step)
        if (step - 1) % self.every:
            return
        if leads and self.log.last_step >= step:
            step = self.log.last_step + 1  # the leading optimizer is a new one, which counts from the start
        with below_everything():
            found = [(name, p, g) for name, p in self._parameters(stepped) if (g := p.grad) is not None]
            if not found:
                return
            names, parameters, gradients = map(list, zip(*found, strict=True))
            sizes = measure(gradients)
            self.log.add(step, tuple(names), sizes)
            own = _ids_of(stepped)
            total = [s.norm for s, p in zip(sizes, parameters, strict=True) if id(p) in own]
            self.log.add_total(stepped.number, math.hypot(*total))
            if self.updates:
                self._keep(names, parameters)

    def after(self, stepped: Stepped) -> None:
        """After the step: measure what has changed."""
        names, now, before = self._before
        self._before = ([], [], [])
        if names:
            with below_everything():
                weights = norms(before)
                foreach_subtract(before, now)  # into our own copies
                self.log.add_updates(names, norms(before), weights)
        if self._leads(stepped) and not is_tracing():
            self._set_probes(stepped)

    def _leads(self, stepped: Stepped) -> bool:
        """Is it the optimizer that counts the training steps?"""
        return self._session.run.training.optimizers[:1] == [stepped]

    def _keep(self, names: Sequence[str], parameters: Sequence[torch.Tensor]) -> None:
        plain = [(n, p.detach()) for n, p in zip(names, parameters, strict=True) if is_plain(p)]
        self._before = ([n for n, _ in plain], [p for _, p in plain], [p.clone() for _, p in plain])

    def _parameters(self, stepped: Stepped) -> list[tuple[str, torch.Tensor]]:
        """The parameters of this optimizer and of no optimizer, by name.

        Looked up again if they have changed.
        """
        key = (
            tuple(_ids_of(stepped)),
            len(self._session.run.training.optimizers),
            len(self._session.run.models),
        )
        known = self._known.get(stepped.number)
        if known is None or known[0] != key:
            known = self._known[stepped.number] = (key, self._look_up(stepped))
        return [(name, p) for name, reference in known[1] if (p := reference()) is not None]

    def _look_up(self, stepped: Stepped) -> list[tuple[str, weakref.ref[torch.Tensor]]]:
        own = _ids_of(stepped)
        others = {key for each in self._session.run.training.optimizers for key in _ids_of(each)} - own.keys()
        every = [each for each in named_parameters(self._session) if id(each.parameter) not in others]
        inside = {id(each.parameter) for each in every}
        every += [
            NamedParameter(f"{stepped.kind}.{place}", f"{stepped.kind}, not of a model", parameter)
            for place, (key, parameter) in enumerate(own.items())
            if key not in inside
        ]
        self.log.learn((name, layer, attempt(p.numel, 0)) for name, layer, p in every)
        return [(each.name, weakref.ref(each.parameter)) for each in every]

    # --- is a gradient cleared between the steps? ---

    def _set_probes(self, stepped: Stepped) -> None:
        own = _ids_of(stepped)
        with functions_off():
            known = [(n, p) for n, p in self._parameters(stepped) if id(p) in own and p.grad is not None]
            chosen = known[:: max(1, -(-len(known) // PROBES))]
            self._probes = [_probe(name, p) for name, p in chosen]

    def _look_at_probes(self, step: int) -> None:
        """A backward adds to a gradient once, which is one write; clearing it would be another.

        Only that case is certain. A program that scales or clips gradients in place, or runs several backward
        passes in a step, writes more often, and gets no report.
        """
        added = [probe for probe in self._probes if _was_only_added_to(probe)]
        self._streak = self._streak + 1 if added and len(added) == len(self._probes) else 0
        if self._streak >= STALE_AFTER and self.log.stale is None and _is_nonzero(added[0]):
            self.log.stale = (added[0].name, step - self._streak)
        elif not self._streak and self._probes:
            self.log.stale = None


def _ids_of(stepped: Stepped) -> dict[int, torch.Tensor]:
    optimizer = stepped.optimizer
    groups = optimizer.param_groups if optimizer is not None else ()
    return {id(parameter): parameter for group in groups for parameter in group["params"]}


def _probe(name: str, parameter: torch.Tensor) -> _Probe:
    gradient = parameter.grad
    assert gradient is not None
    return _Probe(name, weakref.ref(parameter), weakref.ref(gradient), version_of(gradient))


def _was_only_added_to(probe: _Probe) -> bool:
    parameter, gradient = probe.parameter(), probe.gradient()
    if parameter is None or gradient is None or parameter.grad is not gradient:
        return False
    return version_of(gradient) == probe.version + 1


def _is_nonzero(probe: _Probe) -> bool:
    """Is it nonzero? A gradient that was cleared and got nothing since has one write too."""
    gradient = probe.gradient()
    with below_everything():
        return gradient is not None and measure([gradient])[0].most > 0
