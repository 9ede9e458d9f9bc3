"""The diagnostics of a model in a session: its architecture, its performance, and what the doctor found."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch import nn

from layerstep.config import load_config
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Finding
from layerstep.doctor.health import Health, health_of
from layerstep.doctor.watching import Doctor
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.gradients.no_gradient import biases_before_norms
from layerstep.layers.architecture import Architecture, Forward, describe
from layerstep.profile.flops import count_flops
from layerstep.tensors.observing import observing

__all__ = ["ModelDiagnostics", "ModelPerformanceMetrics", "architecture_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPerformanceMetrics:
    """One training step in numbers."""

    training_step: int
    loss: float | None = None
    accuracy: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    throughput_samples_per_sec: float | None = None
    memory_usage_mb: float | None = None
    """Of the process."""
    gpu_utilization: float | None = None
    timestamp: float = field(default_factory=time.time)


def architecture_of(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
) -> Architecture:
    """The architecture of a model. With arguments, it is called once on copies, and leaves no trace."""
    session = Session(config=load_config())
    session.add_model(model, name)
    forward = None
    if args or kwargs:
        forward = Forward()
        counted = count_flops(
            session,
            model,
            args=args,
            kwargs=dict(kwargs or {}),
            backward=torch.is_grad_enabled(),
            seen=forward.note,
        )
        forward.flops = counted.forward + counted.backward
    with observing():
        return describe(session.run.models, forward=forward, removed_biases=biases_before_norms(session))


class ModelDiagnostics:
    """What a session knows of its model.

        session.model_diagnostics.record_architecture(args=(batch,))
        session.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=1, loss=0.5))
        session.model_diagnostics.findings

    A running session records the performance of the sampled steps by itself.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        max_history: int = 200,
        samples: Callable[[int], bool] | None = None,
    ) -> None:
        self.model = model
        self.architecture: Architecture | None = None
        self._performance: deque[ModelPerformanceMetrics] = deque(maxlen=max_history)
        self._samples = samples
        self._doctor: Doctor | None = None
        self._process = psutil.Process(os.getpid())

    @property
    def performance(self) -> tuple[ModelPerformanceMetrics, ...]:
        """The last steps that were recorded."""
        return tuple(self._performance)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the doctor has found, causes first."""
        return tuple(self._doctor.findings) if self._doctor is not None else ()

    @property
    def steps(self) -> int:
        """Training steps that were watched."""
        return self._doctor.diagnosis.run.training_step if self._doctor is not None else 0

    @property
    def health(self) -> Health:
        """100 minus what the findings cost; without a score before 20 steps."""
        return health_of(self.findings, self.steps)

    @property
    def doctor(self) -> Doctor | None:
        """The doctor that watches; None before the session has started, or if it has no diagnostics."""
        return self._doctor

    def record_architecture(
        self,
        architecture: Architecture | None = None,
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Architecture:
        """Note an architecture; without one, look at the model.

        With the arguments of a forward, also what it calls, the shapes and the FLOPs.
        """
        if architecture is None and self.model is None:
            raise UserError("record_architecture() looks at a model", "debug_session(model)")
        if architecture is None and self.model is not None:
            architecture = architecture_of(self.model, args, kwargs)
        assert architecture is not None
        self.architecture = architecture
        return architecture

    def record_performance(self, metrics: ModelPerformanceMetrics) -> None:
        """Add a step that was measured elsewhere."""
        self._performance.append(metrics)

    def watch_with(self, doctor: Doctor) -> None:
        """Note the steps that a doctor sees."""
        self._doctor = doctor
        doctor.steppers.append(self._stepped)

    def clear(self) -> None:
        """Forget the steps; the findings are the doctor's."""
        self._performance.clear()

    def _stepped(self, step: StepFacts) -> None:
        if step.optimizer != 1 or (self._samples is not None and not self._samples(step.number)):
            return
        speed = step.samples / step.seconds if step.seconds > 0 and step.samples else None
        self._performance.append(
            ModelPerformanceMetrics(
                training_step=step.training_step,
                loss=step.loss,
                learning_rate=step.lr,
                batch_size=step.samples or None,
                throughput_samples_per_sec=speed,
                memory_usage_mb=self._process.memory_info().rss / 1e6,
            )
        )
