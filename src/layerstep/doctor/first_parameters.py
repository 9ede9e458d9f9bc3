"""Parameters as they are when the training begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from layerstep.doctor.facts import ParameterFacts
from layerstep.doctor.measuring import is_readable
from layerstep.gradients.sizes import is_plain
from layerstep.tensors.observing import checksum
from layerstep.tensors.shapes import attempt, dtype_name
from layerstep.tensors.summary import summarize

__all__ = ["FIRST", "first_facts"]

FIRST = 1 << 16
"""Elements that the statistics of an initial weight are taken from."""


def first_facts(
    name: str,
    parameter: Tensor,
    *,
    module: str = "",
    kind: str = "",
    model: str = "",
    optimizers: Sequence[int] = (),
    before_norm: bool = False,
) -> ParameterFacts:
    """A parameter before the first step."""
    stats = summarize(parameter, limit=FIRST, brief=True).stats
    return ParameterFacts(
        name,
        module,
        kind,
        name.rpartition(".")[2],
        tuple(parameter.shape),
        dtype_name(parameter.dtype),
        parameter.requires_grad,
        tuple(optimizers),
        mean=stats.mean if stats is not None and stats.mean is not None else math.nan,
        std=stats.std if stats is not None and stats.std is not None else math.nan,
        checksum=checksum(parameter) if is_plain(parameter) and is_readable(parameter) else 0,
        model=model,
        before_norm=before_norm,
        memory=attempt(parameter.data_ptr, 0),
        turned=_checksum_turned(parameter),
    )


def _checksum_turned(parameter: Tensor) -> int:
    if parameter.ndim != 2 or parameter.numel() > FIRST or not is_plain(parameter):
        return 0
    return checksum(parameter.detach().t().contiguous()) if is_readable(parameter) else 0
