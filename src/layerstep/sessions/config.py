"""What a debug session does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerstep.doctor.budget import Level
from layerstep.errors import UserError
from layerstep.gradients.flow import DEFAULT, thresholds_of

__all__ = ["DebugConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugConfig:
    """What a `DebugSession` watches, how much of it is kept, and where the report goes."""

    enable_tensor_inspection: bool = True
    """Inspect what comes out of the modules, in the forwards that are sampled."""
    enable_gradient_debugging: bool = True
    """Record the gradients of the steps that are sampled."""
    enable_model_diagnostics: bool = True
    """Let the doctor watch, note the architecture, and note the loss and the speed of the sampled steps."""
    enable_visualization: bool = False
    """Add curves to the report, and write it as HTML to `output_dir` too."""
    enable_profiling: bool = False
    """Time the modules."""
    max_tracked_tensors: int = 1000
    """Reports of tensors that are kept; the oldest go first."""
    max_gradient_history: int = 200
    """Steps of gradients, and of performance, that are kept."""
    output_dir: str | Path | None = None
    """Where `log.jsonl` grows while the training runs, and where `stop()` writes the report.

    Without it, nothing is written. The log has the steps and findings of the diagnostics, as they come.
    """
    sampling_rate: float = 1.0
    """The share of forwards and steps that are looked at: 0.1 takes the 1st, the 11th, the 21st."""
    level: str = Level.BASIC
    """The budget of the doctor: `basic`, `advanced` or `extreme`."""
    thresholds: str = DEFAULT
    """What counts as a vanishing or exploding gradient, by the name of a preset."""

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise UserError("sampling_rate is above 0 and at most 1", "0.1 looks at one step in ten")
        for name in ("max_tracked_tensors", "max_gradient_history"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is at least 1")
        Level.parse(self.level)
        thresholds_of(self.thresholds)

    def samples(self, number: int) -> bool:
        """Is the forward or step with this number, counted from 1, looked at? The first one is."""
        share = self.sampling_rate
        return number <= 1 or int((number - 1) * share + 1e-9) > int((number - 2) * share + 1e-9)
