"""The recorded gradients as a GIF: a bar for each layer, a frame for each step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from layerstep.exports.gradient_frames import GradientFrames, gradient_frames
from layerstep.registry import export

__all__ = ["write_gif"]

MOST_FRAMES = 60
SECONDS = 8.0
"""The length of the animation; a frame is shown for a tenth of a second at least."""
COLOUR, BAD = "#0a7ea4", "#d1242f"


@export(".gif", extra="plots", of_session=True)
def write_gif(session: Any, path: Path) -> str:
    frames = gradient_frames(session)
    chosen = _spread_out(len(frames.steps), MOST_FRAMES)
    images = _drawn(frames, chosen)
    pause = int(1000 * max(0.1, SECONDS / len(images)))
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=pause, loop=0)
    return f"{len(images)} of {len(frames.steps)} steps"


def _spread_out(count: int, most: int) -> list[int]:
    """So many places of a row, evenly, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]


def _drawn(frames: GradientFrames, chosen: list[int]) -> list[Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    low, high = frames.bounds
    count = len(frames.layers)
    figure = Figure(figsize=(8, min(12, 1.6 + 0.22 * count)), dpi=100, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bars = axes.barh(range(count), [0.0] * count, left=low, color=COLOUR)
    axes.set_yticks(range(count), [layer.replace("$", r"\$") or "the model" for layer in frames.layers])
    axes.set_xlim(low, high)
    axes.set_xticks(range(low, high + 1), [f"1e{power}" for power in range(low, high + 1)])
    axes.set_xlabel("norm of the gradient")
    axes.invert_yaxis()
    title = axes.set_title("step", loc="left")
    images = []
    for at in chosen:
        title.set_text(f"training step {frames.steps[at]}")
        for bar, norm in zip(bars, frames.norms[at], strict=True):
            is_good = math.isfinite(norm)
            size = math.log10(norm) - low if is_good and norm > 0 else 0.0 if is_good else high - low
            bar.set_width(0.0 if math.isnan(norm) else size)
            bar.set_color(COLOUR if is_good else BAD)
        canvas.draw()
        images.append(Image.fromarray(_pixels(canvas)).quantize(64))
    return images


def _pixels(canvas: Any) -> Any:
    import numpy as np

    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
