"""Checks of a model between two lines of a training loop. They only read."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from layerstep.config import load_config
from layerstep.engine.session import Session
from layerstep.gradients.flow import DEFAULT, GradientFlow, LayerGradient, Thresholds, thresholds_of
from layerstep.gradients.no_gradient import biases_before_norms
from layerstep.gradients.sizes import measure
from layerstep.tensors.observing import observing
from layerstep.tensors.summary import summarize

__all__ = [
    "GradientCheck",
    "GradientChecker",
    "MemoryUse",
    "ParameterCheck",
    "check_parameters",
    "memory_use",
    "sizes_of_gradients",
]


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The gradients of a model as they are now."""

    norm: float
    """Of all gradients together; NaN if one of them is NaN."""
    nonfinite: tuple[str, ...]
    """The parameters whose gradient holds a NaN or an Inf."""
    exploding: tuple[str, ...]
    vanishing: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        return not (self.nonfinite or self.exploding or self.vanishing)


class GradientChecker:
    """Judges gradients by thresholds.

    A bias that a norm removes has no gradient to speak of, and rightly so: it never vanishes.
    """

    def __init__(self, thresholds: str | Thresholds = DEFAULT) -> None:
        self._thresholds = thresholds_of(thresholds)
        self._model: weakref.ref[nn.Module] | None = None
        self._removed: frozenset[int] = frozenset()

    def check(self, model: nn.Module) -> GradientCheck:
        """Look at the gradient of each parameter."""
        if self._model is None or self._model() is not model:
            session = Session(config=load_config())
            session.add_model(model)
            self._removed = frozenset(biases_before_norms(session))
            self._model = weakref.ref(model)
        with observing():
            found = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
            sizes = measure([p.grad for _, p in found if p.grad is not None])
        last = sizes[-1].norm if sizes else math.nan
        nonfinite, exploding, vanishing = [], [], []
        for (name, parameter), size in zip(found, sizes, strict=True):
            vanishes, explodes = self._thresholds.judge(*size, last=last)
            if not math.isfinite(size.norm):
                nonfinite.append(name)
            elif explodes:
                exploding.append(name)
            elif vanishes and id(parameter) not in self._removed:
                vanishing.append(name)
        norm = math.hypot(*(size.norm for size in sizes))
        return GradientCheck(norm, tuple(nonfinite), tuple(exploding), tuple(vanishing))


def sizes_of_gradients(model: nn.Module, thresholds: str | Thresholds = DEFAULT) -> dict[str, LayerGradient]:
    """The size of the gradient of each parameter that has one."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    with observing():
        frame = GradientFlow(1, thresholds=thresholds).record_step(0, gradients)
    return {layer.name: layer for layer in frame.layers}


@dataclass(frozen=True, slots=True)
class ParameterCheck:
    """The parameters of a model as they are now."""

    total_parameters: int
    nan_parameters: tuple[str, ...]
    inf_parameters: tuple[str, ...]

    @property
    def is_finite(self) -> bool:
        return not self.nan_parameters and not self.inf_parameters


def check_parameters(model: nn.Module) -> ParameterCheck:
    """Look for NaN and Inf in all parameters."""
    nan, inf, total = [], [], 0
    with observing():
        for name, parameter in model.named_parameters():
            total += parameter.numel()
            stats = summarize(parameter, limit=None, brief=True).stats
            if stats is not None and stats.nan:
                nan.append(name)
            if stats is not None and (stats.posinf or stats.neginf):
                inf.append(name)
    return ParameterCheck(total, tuple(nan), tuple(inf))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The bytes that a model holds now."""

    parameters: int
    gradients: int
    buffers: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.buffers


def memory_use(model: nn.Module) -> MemoryUse:
    """Count the bytes of a model. What a forward keeps for the backward is not in it."""
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    with observing():
        return MemoryUse(_bytes(parameters), _bytes(gradients), _bytes(model.buffers()))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(summarize(tensor, limit=0).nbytes or 0 for tensor in tensors)
