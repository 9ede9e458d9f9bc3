"""The figures of any tensor, in bounded time and memory.

torch moves and converts blocks, numpy counts. All of it runs below the user's modes, so that no profiler,
vmap or fake mode sees it. Nothing raises: what cannot be read gets a note.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from layerstep._torch import below_everything
from layerstep._torch.tensors import as_numpy
from layerstep.tensors.counting import Stats, measure, measure_small
from layerstep.tensors.kinds import bytes_of, is_dense_on_cpu, open_values
from layerstep.tensors.shapes import attempt, dtype_name, shape_of

__all__ = ["Stats", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class Summary:
    """A tensor described; -1 in `shape` is a ragged or symbolic dimension, `note` qualifies `stats`."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    layout: str
    nbytes: int | None
    requires_grad: bool
    stats: Stats | None
    note: str


SMALL = 1 << 18
_SHORT = {torch.float32: "f32", torch.float64: "f64"}


def _of_small(tensor: torch.Tensor, limit: int | None) -> Summary | None:
    """The same of a small tensor of the common kind, in a tenth of the time; None of any other.

    A recording looks at each output of a model: there most of the time was spent on telling the kinds apart.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.dtype not in _SHORT:
        return None
    count = tensor.numel()
    if not 0 < count <= (SMALL if limit is None else min(limit, SMALL)) or not is_dense_on_cpu(tensor):
        return None
    stats = measure_small(as_numpy(tensor.detach().view(-1)))
    if stats is None:
        return None
    return Summary(
        dtype=_SHORT[tensor.dtype],
        shape=tuple(tensor.shape),
        device="cpu",
        layout="",
        nbytes=count * tensor.element_size(),
        requires_grad=tensor.requires_grad,
        stats=stats,
        note="",
    )


def summarize(tensor: torch.Tensor, *, limit: int | None = None, brief: bool = False) -> Summary:
    """Describe any tensor; never raises. Reads at most `limit` elements, evenly spread.

    `brief` leaves out signs, subnormals and the mean magnitude, which the tensor line does not show.
    """
    with below_everything(), np.errstate(all="ignore"):
        if brief and (found := _of_small(tensor, limit)) is not None:
            return found
        stats, layout, note = None, "unknown", ""
        try:
            values = open_values(tensor)
            layout, note = values.layout, values.note
            if values.parts is not None:
                if limit is None or limit > 0:
                    stats = measure(values, limit, brief=brief)
                else:
                    note = "not looked at"
        except Exception as error:  # a kind of tensor unknown here must not end the user's run
            note = f"values cannot be read: {type(error).__name__}"
        return Summary(
            dtype=attempt(lambda: dtype_name(tensor.dtype), "?"),
            shape=attempt(lambda: shape_of(tensor), ()),
            device=attempt(lambda: str(tensor.device), "?"),
            layout=layout,
            nbytes=attempt(lambda: bytes_of(tensor, layout), None),
            requires_grad=attempt(lambda: bool(tensor.requires_grad), False),
            stats=stats,
            note=note,
        )
