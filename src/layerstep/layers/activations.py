"""The output of a layer unit by unit: which are dead, saturated, or far above the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from layerstep._torch import below_everything
from layerstep._torch.tensors import as_numpy
from layerstep.tensors.format import listed, number, share
from layerstep.tensors.kinds import open_values
from layerstep.tensors.summary import Summary, summarize

__all__ = ["Activation", "measure_activation", "remarks"]

Matrix = npt.NDArray[np.float32]

MOST_READ = 1 << 22
"""The most elements that are read unit by unit; of more, every n-th position."""
FEWEST_SEEN = 16
"""A unit that is always zero counts as dead after so many positions: at one, half of all ReLUs are zero."""
SATURATED = 0.99
SIGMAS = 6.0
RECTIFIERS = (
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "PReLU",
    "RReLU",
    "ELU",
    "CELU",
    "SELU",
    "GELU",
    "SiLU",
    "Threshold",
)
BOUNDED = {
    "Tanh": -1.0,
    "Hardtanh": -1.0,
    "Softsign": -1.0,
    "Sigmoid": 0.0,
    "Hardsigmoid": 0.0,
    "Softmax": 0.0,
}
"""Layers with a bounded range, and its lower end; the upper end of all is 1."""


@dataclass(frozen=True, slots=True)
class Activation:
    """The output of one layer. None where a figure has no meaning or cannot be read; the note says why."""

    summary: Summary
    units: int | None = None
    seen: int = 0
    """How many positions of each unit were read."""
    dead: int | None = None
    """Units that are zero at every position."""
    constant: int | None = None
    """Units that have the same nonzero value at every position."""
    saturated: float | None = None
    outliers: tuple[tuple[int, float], ...] = ()
    """Units far above the others, the largest first, and how many robust sigmas."""
    is_rectified: bool = False
    note: str = ""


def measure_activation(tensor: torch.Tensor, module: nn.Module) -> Activation:
    """Measure any tensor. Never raises; bounded in time and memory."""
    summary = summarize(tensor, brief=True)
    with below_everything(), np.errstate(all="ignore"):
        try:
            return _measure(tensor, module, summary)
        except Exception as error:  # a kind of tensor unknown here must not end the user's run
            return Activation(summary, note=f"not looked at by unit: {type(error).__name__}")


def _measure(tensor: torch.Tensor, module: nn.Module, summary: Summary) -> Activation:
    values = open_values(tensor)
    if values.parts is None or values.layout or len(values.parts) != 1 or len(values.parts[0]) != 1:
        return Activation(summary, note=summary.note or f"a {values.layout} tensor is not looked at by unit")
    plain = values.parts[0][0]
    if not plain.numel():
        return Activation(summary, note="it has no elements")
    matrix, note = _by_unit(plain, _unit_axis(plain, module))
    low, high = (
        matrix.min(0),
        matrix.max(0),
    )  # these carry NaN: a unit with one is neither dead nor far
    seen, units = matrix.shape
    enough, looks_up = seen >= FEWEST_SEEN, isinstance(module, nn.Embedding)  # of one id it is one row
    least, most = summary.stats.min if summary.stats else None, summary.stats.max if summary.stats else None
    kinds = {base.__name__ for base in type(module).__mro__}
    return Activation(
        summary,
        units,
        seen,
        dead=int(((low == 0) & (high == 0)).sum()) if enough else None,
        constant=int(((low == high) & (low != 0)).sum()) if enough and not looks_up else None,
        saturated=_saturated(matrix, kinds, least, most),
        outliers=_outliers(np.maximum(np.abs(low), np.abs(high))),
        is_rectified=bool(kinds & set(RECTIFIERS)) or (least is not None and least >= 0),
        note=", ".join(filter(None, (summary.note, note))),
    )


def _unit_axis(tensor: torch.Tensor, module: nn.Module) -> int:
    """The outputs of convolutions and their norms have channels second, others have features last."""
    second = isinstance(module, nn.modules.conv._ConvNd | nn.modules.batchnorm._BatchNorm | nn.GroupNorm)
    return 1 if tensor.dim() >= 4 or (second and tensor.dim() >= 2) else -1


def _by_unit(tensor: torch.Tensor, axis: int) -> tuple[Matrix, str]:
    """Positions by units in float32, and a word if positions were left out."""
    if tensor.is_complex():
        tensor = tensor.abs()
    if not tensor.dim():
        tensor = tensor.reshape(1)
    moved = tensor.movedim(axis, -1)
    positions = moved.numel() // moved.shape[-1]
    step = max(1, math.ceil(moved.numel() / MOST_READ))
    if step > 1:
        index = torch.arange(0, positions, step, device="cpu")
        places = np.unravel_index(index.numpy(), tuple(moved.shape[:-1]))
        moved = moved[tuple(torch.from_numpy(place).to(moved.device) for place in places)]
    rows: Any = as_numpy(moved.reshape(-1, moved.shape[-1]).to("cpu", torch.float32))
    return rows, f"units at one position in {step}" if step > 1 else ""


def _saturated(matrix: Matrix, kinds: set[str], least: float | None, most: float | None) -> float | None:
    """The share at the ends of a bounded range, known by class or because all values are between -1 and 1."""
    start = next((BOUNDED[kind] for kind in BOUNDED if kind in kinds), None)
    if start is None:
        if least is None or most is None or least < -1 or most > 1 or max(-least, most) < SATURATED:
            return None
        start = -1.0
    near = matrix > SATURATED
    if start == 0.0 and "Softmax" not in kinds:
        near |= matrix < 1 - SATURATED
    elif start == -1.0:
        near |= matrix < -SATURATED
    return float(near.mean())


def _outliers(peaks: Matrix) -> tuple[tuple[int, float], ...]:
    """Units whose largest magnitude is many robust sigmas above the median of all, and at least twice it."""
    known = peaks[np.isfinite(peaks)]
    if known.size < 8:
        return ()
    middle = float(np.median(known))
    sigma = 1.4826 * float(np.median(np.abs(known - middle)))
    if not sigma:
        return ()
    far = np.where(np.isfinite(peaks), (peaks - middle) / sigma, 0.0)
    order = np.argsort(-far, kind="stable")
    return tuple((int(at), float(far[at])) for at in order if far[at] > SIGMAS and peaks[at] > 2 * middle)


def remarks(measured: Sequence[tuple[str, Activation]]) -> list[str]:
    """What is odd, in words, a line for each layer; those with most to say first."""
    found = []
    for path, one in measured:
        said = list(_remarks(one))
        if said:
            found.append((len(said), f"{path}: {', '.join(said)}"))
    return [line for _, line in sorted(found, key=lambda pair: -pair[0])]


def _remarks(one: Activation) -> list[str]:
    stats = one.summary.stats
    said = []
    if stats is not None and (bad := stats.nan + stats.posinf + stats.neginf):
        said.append(f"{bad:,} not finite")
    if one.dead and one.units:
        what = "dead" if one.is_rectified else "always zero"
        said.append(f"{one.dead} of {one.units} units {what} ({share(one.dead, one.units)})")
    if one.constant and one.units and one.units > 1:
        said.append(f"{one.constant} of {one.units} units constant")
    if one.saturated is not None and one.saturated > 0.5:
        said.append(f"{one.saturated:.0%} saturated")
    if one.outliers:
        names = listed([f"{at} ({number(sigmas)}σ)" for at, sigmas in one.outliers], 3)
        said.append(f"unit {names} far above the others")
    return said
