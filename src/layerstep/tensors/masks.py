"""Attention masks: one large negative number in many places. Checks of the values leave it out."""

from __future__ import annotations

import torch

from layerstep._torch import below_everything
from layerstep.tensors.counting import Stats
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.shapes import attempt

__all__ = ["LEAST", "largest_unmasked"]

LEAST = -5e3
"""Masks in use: -1e4, -1e9, -65504, the least number of the dtype, -inf."""
ALIKE = 1e-2
"""Scores with a mask added differ by at most this part of the mask."""
LOOK_AT = 1 << 20


def largest_unmasked(tensor: torch.Tensor, stats: Stats) -> float:
    """The largest magnitude of the finite values that are not a mask."""
    most = stats.max_norm or 0.0
    if stats.min is None or stats.min > LEAST or not tensor.is_floating_point():
        return most
    found = attempt(lambda: _without_mask(tensor, stats.min or 0.0), None)
    return most if found is None else float(found)


def _without_mask(tensor: torch.Tensor, least: float) -> float | None:
    """None if the least values are not a mask."""
    with below_everything():
        values = dense_values(tensor)
        if values is None:
            return None
        flat = values.reshape(-1)
        flat = flat[:: max(1, -(-flat.numel() // LOOK_AT))].double()
        flat = flat[flat.isfinite()]
        low, rest = flat[flat <= least / 2], flat[flat > least / 2]
        if not low.numel() or float(low.max() - low.min()) > ALIKE * -least:
            return None
        largest = float(rest.abs().max()) if rest.numel() else 0.0
        return largest if largest < ALIKE * -least else None
