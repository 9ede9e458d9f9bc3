"""Gradient flow over the training steps: a frame for each step, a row for each layer, and a summary.

A layer vanishes if its mean |g| is below one threshold, and explodes if its max |g| is above another. The
intensity of a layer is its norm divided by the largest norm of the step. A gradient that is not finite makes
the run critical, whatever the thresholds.
"""

from __future__ import annotations

import csv
import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np

from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError
from layerstep.gradients.sizes import Size, measure
from layerstep.tensors.format import listed

__all__ = [
    "DEFAULT",
    "PRESETS",
    "FlowSummary",
    "GradientFlow",
    "GradientFrame",
    "Health",
    "LayerGradient",
    "Thresholds",
    "size_of",
    "thresholds_of",
]

SHADES = " ░▒▓█"


class Health(StrEnum):
    """The health of the gradients of a run, in four classes."""

    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Vanishing: a mean |g| below this. Exploding: a max |g| above this.

    `of_norm`: compare the norm instead.
    `to_last`: besides, compare the norm with that of the last layer. A layer then vanishes only if it is also
    below the first of these parts of it, and explodes only if it is also above the second.
    """

    vanishing: float = 1e-7
    exploding: float = 1e3
    of_norm: bool = False
    to_last: tuple[float, float] | None = None

    def judge(self, mean: float, most: float, norm: float, *, last: float = math.nan) -> tuple[bool, bool]:
        """Does it vanish, and does it explode? A NaN does neither: it is reported apart.

        `last` is the norm of the last layer.
        """
        low, high = (norm, norm) if self.of_norm else (mean, most)
        vanishes, explodes = low < self.vanishing, high > self.exploding
        if self.to_last is not None:
            vanishes = vanishes and norm < self.to_last[0] * last
            explodes = explodes and norm > self.to_last[1] * last
        return vanishes, explodes


DEFAULT = "layerstep"
PRESETS = {
    DEFAULT: Thresholds(),
    "seed-animator": Thresholds(vanishing=1e-7, exploding=1e3),
    "seed-ads": Thresholds(vanishing=1e-6, exploding=10.0, of_norm=True),
    "seed-email": Thresholds(vanishing=0.0, exploding=1.0, of_norm=True),
    "aws": Thresholds(vanishing=1e-7, exploding=math.inf),
    "autotrainer": Thresholds(vanishing=1e-4, exploding=0.0, of_norm=True, to_last=(1e-3, 70.0)),
}
"""Thresholds by name. `layerstep` looks at the elements: in 63 healthy runs it called nothing exploding, and
nothing vanishing but biases in front of a batch norm. `seed-animator` has the same numbers. `seed-ads` looks
at the norm of each layer. `seed-email` has a limit of 1, where many people clip; 81 % of healthy runs exceed
it, so it is a goal, not an alarm. `aws` calls nothing exploding that is finite. `autotrainer` compares each
layer with the last one."""


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """The gradient of one layer in one step."""

    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.grad_norm) and math.isfinite(self.max_abs_grad)


@dataclass(frozen=True, slots=True)
class GradientFrame:
    """All layers in one step, by name."""

    step: int
    layers: tuple[LayerGradient, ...]

    @property
    def has_issue(self) -> bool:
        return any(layer.is_vanishing or layer.is_exploding or not layer.is_finite for layer in self.layers)


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """The summary of the recorded frames."""

    total_steps: int
    layers_with_vanishing_grads: tuple[str, ...]
    layers_with_exploding_grads: tuple[str, ...]
    layers_with_nonfinite_grads: tuple[str, ...]
    overall_health: Health
    recommendations: tuple[str, ...]


class GradientFlow:
    """A rolling window of gradient frames.

        flow = GradientFlow(max_frames=200)
        flow.record_step(step, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        print(flow.to_ascii_animation())

    `max_frames` 0 keeps all. `thresholds` is a preset's name or a `Thresholds`.
    """

    def __init__(self, max_frames: int = 200, *, thresholds: str | Thresholds = DEFAULT) -> None:
        if max_frames < 0:
            raise UserError("max_frames must be 0 (unlimited) or more")
        self.thresholds = thresholds_of(thresholds)
        self.max_frames = max_frames
        self._frames: deque[GradientFrame] = deque(maxlen=max_frames or None)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def frames(self) -> tuple[GradientFrame, ...]:
        """The frames that are kept, the oldest first."""
        return tuple(self._frames)

    def record_step(self, step: int, gradients: Mapping[str, Any]) -> GradientFrame:
        """Add the gradients of one step: tensors, arrays or sequences of numbers by layer."""
        return self.record_numbers(step, {name: size_of(value) for name, value in gradients.items()})

    def record_numbers(self, step: int, numbers: Mapping[str, tuple[float, float, float]]) -> GradientFrame:
        """The same from (mean |g|, max |g|, norm) by layer, if you have measured already.

        The last layer of `numbers` is the last of the model, for thresholds that compare with it.
        """
        largest = max((norm for _, _, norm in numbers.values() if math.isfinite(norm)), default=0.0)
        last = list(numbers.values())[-1][2] if numbers else math.nan
        layers = []
        for name, (mean, most, norm) in sorted(numbers.items()):
            vanishes, explodes = self.thresholds.judge(mean, most, norm, last=last)
            layers.append(
                LayerGradient(
                    name=name,
                    mean_abs_grad=mean,
                    max_abs_grad=most,
                    grad_norm=norm,
                    is_vanishing=vanishes,
                    is_exploding=explodes,
                    flow_intensity=_intensity(norm, largest),
                )
            )
        frame = GradientFrame(step, tuple(layers))
        self._frames.append(frame)
        return frame

    def clear(self) -> None:
        """Forget all frames."""
        self._frames.clear()

    def export_json(self, path: str | Path) -> None:
        """Write the frames as a list of `{step, layers}`; numbers that JSON lacks are written as null."""
        frames = [asdict(frame) for frame in self._frames]
        for frame in frames:
            for layer in frame["layers"]:
                layer.update({key: None for key, value in layer.items() if _is_odd(value)})
        _file(path).write_text(json.dumps(frames, indent=2, allow_nan=False), encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path, *, max_frames: int = 0) -> Self:
        """Read the frames from a file of `export_json`; null becomes NaN."""
        flow = cls(max_frames)
        for frame in json.loads(Path(path).read_text(encoding="utf-8")):
            layers: list[dict[str, Any]] = [
                {key: math.nan if value is None else value for key, value in layer.items()}
                for layer in frame["layers"]
            ]
            flow._frames.append(GradientFrame(frame["step"], tuple(LayerGradient(**each) for each in layers)))
        return flow

    def export_csv(self, path: str | Path) -> None:
        """Write a row for each layer and step, floats as 1.00000000e-1, flags as 0 and 1."""
        with _file(path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            for frame in self._frames:
                for layer in frame.layers:
                    numbers = (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm)
                    flags = (int(layer.is_vanishing), int(layer.is_exploding))
                    writer.writerow([frame.step, layer.name, *map(_scientific, numbers), *flags])

    def to_ascii_animation(self, *, width: int = 0, order: Sequence[str] = ()) -> str:
        """Layers down, steps to the right, five shades by intensity; `!` where a gradient is not finite.

        With `width`, shows the last frames that fit, and the ends of long names. The layers of `order` come
        first, in that order, then the others by name.
        """
        if not self._frames:
            return "(no gradient frames recorded)\n"
        frames = list(self._frames)
        places = {name: place for place, name in enumerate(order)}
        names = sorted(
            {layer.name for frame in frames for layer in frame.layers},
            key=lambda name: (places.get(name, len(places)), name),
        )
        room = max(map(len, names), default=8)
        if width:
            room = max(min(room, width // 2), len("layer"))
            frames = frames[-max(width - room - 2, 1) :]
        lines = ["Gradient Flow Animation (step → right, layer ↓)"]
        lines.append(f"{'layer':>{room}}  " + "".join(str(i % 10) for i in range(len(frames))))
        lines.append("─" * (room + 2 + len(frames)))
        by_name = [{layer.name: layer for layer in frame.layers} for frame in frames]
        for name in names:
            shown = name if len(name) <= room else "…" + name[1 - room :]
            lines.append(f"{shown:>{room}}  " + "".join(_shade(frame.get(name)) for frame in by_name))
        return "\n".join(lines) + "\n"

    def summary_report(self) -> FlowSummary:
        """The health of the run, the layers that vanish or explode, and what to do."""
        layers = [layer for frame in self._frames for layer in frame.layers]
        vanishing = _names(layer for layer in layers if layer.is_vanishing)
        exploding = _names(layer for layer in layers if layer.is_exploding)
        broken = _names(layer for layer in layers if not layer.is_finite)
        issues = sum(frame.has_issue for frame in self._frames)
        health = _classify(issues / max(len(self._frames), 1), vanishing, exploding, broken)
        return FlowSummary(
            total_steps=self._frames[-1].step + 1 if self._frames else 0,
            layers_with_vanishing_grads=vanishing,
            layers_with_exploding_grads=exploding,
            layers_with_nonfinite_grads=broken,
            overall_health=health,
            recommendations=_advice(health, vanishing, exploding, broken),
        )


_COLUMNS = ("step", "layer", "mean_abs_grad", "max_abs_grad", "grad_norm", "is_vanishing", "is_exploding")


def thresholds_of(given: str | Thresholds) -> Thresholds:
    """Thresholds, or a preset by its name."""
    if isinstance(given, Thresholds):
        return given
    if given not in PRESETS:
        raise UserError(f"no thresholds called {given!r}", f"there are {', '.join(PRESETS)}")
    return PRESETS[given]


def size_of(value: Any) -> Size:
    """Mean |g|, max |g| and norm of a tensor, an array or numbers; a NaN stays a NaN."""
    if is_tensor(value):
        return measure([value])[0]
    sizes = np.abs(np.asarray(value, dtype=np.float64)).reshape(-1)
    if not sizes.size:
        return Size(0.0, 0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        most = float(sizes.max())
        scale = most if math.isfinite(most) and most > 0 else 1.0
        return Size(float(sizes.mean()), most, scale * float(np.sqrt(np.square(sizes / scale).sum())))


def _intensity(norm: float, largest: float) -> float:
    if not math.isfinite(norm):
        return 1.0
    return min(max(norm / largest, 0.0), 1.0) if largest > 0 else 0.0


def _shade(layer: LayerGradient | None) -> str:
    if layer is None:
        return SHADES[0]
    if not layer.is_finite:
        return "!"
    whole, rest = divmod(layer.flow_intensity * (len(SHADES) - 1), 1)
    return SHADES[int(whole) + (rest >= 0.5)]  # round a half up; `round` would go to the even one


def _scientific(value: float) -> str:
    """1.00000000e-1: no plus sign and no leading zero in the exponent."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    mantissa, _, exponent = f"{value:.8e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _file(path: str | Path) -> Path:
    found = Path(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def _names(layers: Iterable[LayerGradient]) -> tuple[str, ...]:
    return tuple(sorted({layer.name for layer in layers}))


def _classify(ratio: float, vanishing: Any, exploding: Any, broken: Any) -> Health:
    if broken or (exploding and ratio > 0.5):
        return Health.CRITICAL
    if exploding or ratio > 0.3:
        return Health.PROBLEMS_DETECTED
    if vanishing or ratio > 0.1:
        return Health.MINOR_ISSUES
    return Health.HEALTHY


def _advice(
    health: Health, vanishing: tuple[str, ...], exploding: tuple[str, ...], broken: tuple[str, ...]
) -> tuple[str, ...]:
    said = []
    if broken:
        said.append(f"Not finite: {listed(broken)}. Find the first op that makes it before anything else.")
    if exploding:
        said.append(f"Exploding: {listed(exploding)}. Clip the norm of the gradients, or lower the rate.")
    if vanishing:
        said.append(
            f"Vanishing: {listed(vanishing)}. Look for saturated or dead activations above these layers; "
            "residual paths, normalisation or another initialisation help."
        )
    closing = {
        Health.CRITICAL: "Stop the run: from here on it learns noise.",
        Health.PROBLEMS_DETECTED: "Look into it now; depth, rate and initialisation are the usual causes.",
        Health.MINOR_ISSUES: "Keep an eye on it; a step now and then may be harmless.",
        Health.HEALTHY: "Nothing to do.",
    }
    return (*said, closing[health])
