"""Diffusion pipelines: what they are made of, and the latents of each denoising step.

A pipeline is anything with `components`, a dictionary of its parts by name, as those of `diffusers` have.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from layerstep.errors import UserError
from layerstep.sessions.checks import check_parameters, memory_use
from layerstep.sessions.tensor_record import TensorRecord, look_at, record_fields

__all__ = ["DiffusionModelDebugger", "DiffusionStep", "PipelineAnalysis", "PipelineComponent"]

MOST = 1000
FAR = 100.0
"""Latents are drawn with a standard deviation of about 1; beyond a hundred, the sampling diverges."""


@dataclass(frozen=True, slots=True)
class PipelineComponent:
    """One model of a pipeline."""

    name: str
    kind: str
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    nonfinite: tuple[str, ...]
    """The parameters that hold a NaN or an Inf."""


@dataclass(frozen=True, slots=True)
class PipelineAnalysis:
    """The models of a pipeline, and its other parts by class."""

    components: tuple[PipelineComponent, ...]
    others: dict[str, str]

    @property
    def total_parameters(self) -> int:
        return sum(each.parameters for each in self.components)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is odd: weights that are not finite, models on several devices."""
        found = [
            f"{each.name}: {', '.join(each.nonfinite[:3])} not finite"
            for each in self.components
            if each.nonfinite
        ]
        devices = {device for each in self.components for device in each.devices}
        if len(devices) > 1:
            found.append(f"its models are on {', '.join(sorted(devices))}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class DiffusionStep:
    """The latents of one denoising step."""

    step: int
    latents: TensorRecord
    problem: str
    """What is wrong with them, or nothing."""


class DiffusionModelDebugger:
    """Looks at a diffusion pipeline and at its sampling.

        debugger = DiffusionModelDebugger()
        debugger.analyze_diffusion_pipeline(pipeline).total_parameters
        pipeline(..., callback_on_step_end=debugger.on_step_end)

    or `monitor_diffusion_step(pipeline, step, latents)` in a loop of your own.
    """

    def __init__(self) -> None:
        self._history: deque[DiffusionStep] = deque(maxlen=MOST)
        self.anomalies = 0

    @property
    def history(self) -> tuple[DiffusionStep, ...]:
        """The last thousand steps."""
        return tuple(self._history)

    def analyze_diffusion_pipeline(self, pipeline: Any) -> PipelineAnalysis:
        """Count and check the models of a pipeline."""
        parts = getattr(pipeline, "components", None)
        if not isinstance(parts, dict):
            raise UserError(
                f"{type(pipeline).__name__} has no components", "a pipeline of diffusers, or the like"
            )
        models = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        others = {n: type(part).__name__ for n, part in parts.items() if part is not None and n not in models}
        return PipelineAnalysis(tuple(_component(name, model) for name, model in models.items()), others)

    def monitor_diffusion_step(self, pipeline: Any, step: int, latents: Tensor) -> DiffusionStep:
        """Look at the latents after a denoising step."""
        fields = record_fields(
            look_at(latents), "latents", layer=type(pipeline).__name__, operation="denoise"
        )
        record = TensorRecord(**fields)
        found = DiffusionStep(step, record, _problem(record))
        self._history.append(found)
        self.anomalies += bool(found.problem)
        return found

    def on_step_end(self, pipeline: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """For `callback_on_step_end` of `diffusers`: looks, and changes nothing."""
        if isinstance(kwargs.get("latents"), Tensor):
            self.monitor_diffusion_step(pipeline, step, kwargs["latents"])
        return kwargs


def _component(name: str, model: nn.Module) -> PipelineComponent:
    checked = check_parameters(model)
    parameters = list(model.parameters())
    return PipelineComponent(
        name,
        type(model).__name__,
        checked.total_parameters,
        memory_use(model).parameters,
        tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        tuple(sorted({str(p.device) for p in parameters})),
        checked.nan_parameters + checked.inf_parameters,
    )


def _problem(record: TensorRecord) -> str:
    if not record.is_finite:
        return f"{record.nan:,} NaN and {record.inf:,} Inf in the latents"
    if record.std is not None and record.std > FAR:
        return f"the latents have a standard deviation of {record.std:.3g}: the sampling diverges"
    if record.std == 0:
        return "the latents are constant"
    return ""
