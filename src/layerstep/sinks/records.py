"""Records as a tracker wants them: names and numbers. Worked out in the thread of the tracker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from layerstep._torch import below_everything
from layerstep.doctor.facts import StepFacts
from layerstep.expressions.recordings import Recorded, Recordings
from layerstep.gradients.log import GradientLog, RecordedStep
from layerstep.graph.model_graph import ModelGraph
from layerstep.profile.report import Measured
from layerstep.sinks.sink import Embedding, Histogram, Sink
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.spread import spread

__all__ = [
    "ModelGraph",
    "embeddings_of",
    "send_embedding",
    "send_gradients",
    "send_recordings",
    "send_step",
    "times_of",
]

BINS = 40
MOST_POINTS, MOST_EMBEDDINGS, MOST_SIZE = 1_000, 16, 4_096
"""Rows of an embedding, embeddings of a run, and numbers in a row."""


def send_recordings(sink: Sink, *, entries: Sequence[tuple[int, Recorded]]) -> None:
    """What `record` has kept: figures, and of copies of tensors a histogram."""
    by_step: dict[int, dict[str, float]] = {}
    for step, entry in entries:
        by_step.setdefault(step, {}).update(_figures(entry))
    for step, values in by_step.items():
        sink.scalars(values, step)
    for step, entry in entries:
        value = entry.value  # the ring may let go of it at any time
        for at, tensor in enumerate(tensors_of(value) if value is not None else ()):
            found = spread(tensor, bins=BINS)
            if found is not None:
                name = f"output/{entry.path}" + (f"[{at}]" if at else "")
                sink.histogram(name, Histogram(found.counts, found.edges), step)


def _figures(entry: Recorded) -> dict[str, float]:
    values: dict[str, float] = {}
    for place, summary in entry.facts:
        stats, name = summary.stats, f"{entry.path}{place}"
        if stats is None:
            continue
        for word, figure in (
            ("mean", stats.mean),
            ("std", stats.std),
            ("min", stats.min),
            ("max", stats.max),
            ("nonfinite", stats.nan + stats.posinf + stats.neginf),
        ):
            if figure is not None:
                values[f"output_{word}/{name}"] = float(figure)
    return values


def send_gradients(sink: Sink, *, log: GradientLog, frames: Iterable[RecordedStep]) -> None:
    """What `grad record` has kept, by layer."""
    for frame in frames:
        values: dict[str, float] = {}
        for layer, entry in log.by_layer(frame).items():
            values[f"gradient_norm/{layer}"] = entry.size.norm
            values[f"gradient_max/{layer}"] = entry.size.most
            if not math.isnan(entry.ratio):
                values[f"update_ratio/{layer}"] = entry.ratio
        sink.scalars(values, frame.step)


def send_step(sink: Sink, *, facts: StepFacts) -> None:
    """A step that the doctor has watched."""
    lead = "" if facts.optimizer == 1 else f"optimizer_{facts.optimizer}/"
    seen = {
        "loss": facts.loss,
        "total_gradient_norm": facts.grad_norm,
        "learning_rate": None if math.isnan(facts.lr) else facts.lr,
        "step_seconds": facts.seconds,
        "samples": facts.samples or None,
    }
    values = {f"{lead}{name}": float(value) for name, value in seen.items() if value is not None}
    sink.scalars(values, facts.training_step)


def times_of(measured: Measured) -> dict[str, float]:
    """A profile: milliseconds of a typical step, in all and by module."""
    values = {f"time_ms/{row.path}": 1e3 * measured.typical(row.total) for row in measured.rows}
    return {"profile_step_ms": 1e3 * measured.step.median, **values}


def embeddings_of(recordings: Recordings) -> Iterator[tuple[str, Recorded]]:
    """The last copy of each path whose rows are points."""
    found = 0
    for path in recordings.paths:
        entry = next((each for each in reversed(recordings.of(path)) if each.value is not None), None)
        tensors = tensors_of(entry.value) if entry is not None else []
        if entry is not None and tensors and _has_points(tensors[0]) and found < MOST_EMBEDDINGS:
            found += 1
            yield path, entry


def _has_points(tensor: torch.Tensor) -> bool:
    is_wide = tensor.dim() >= 2 and 2 <= tensor.shape[-1] <= MOST_SIZE
    return is_wide and tensor.is_floating_point() and tensor.layout is torch.strided


def send_embedding(sink: Sink, *, name: str, entry: Recorded, step: int) -> None:
    """The rows of a copy as points, each labelled with its place in the tensor."""
    value = entry.value
    tensors = tensors_of(value) if value is not None else []
    if not tensors:
        return
    with below_everything():
        flat = tensors[0].reshape(-1, tensors[0].shape[-1])[:MOST_POINTS].float()
        rows = tuple(tuple(row) for row in flat.cpu().tolist())
    shape = tensors[0].shape[:-1]
    labels = tuple(str(list(_place(at, shape))) for at in range(len(rows)))
    sink.embedding(name, Embedding(rows, labels), step)


def _place(at: int, shape: Sequence[int]) -> list[int]:
    place: list[int] = []
    for size in reversed(shape):
        at, here = divmod(at, size)
        place.insert(0, here)
    return place
