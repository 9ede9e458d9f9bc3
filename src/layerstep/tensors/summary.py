"""The figures of any tensor, in bounded time and memory.

torch moves and converts blocks, numpy counts. All of it runs below the user's modes, so that no profiler,
vmap or fake mode sees it. Nothing raises: what cannot be read gets a note.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from layerstep._torch import below_everything
from layerstep.tensors.counting import Stats, measure, stats_of
from layerstep.tensors.kinds import bytes_of, open_values
from layerstep.tensors.quick_look import QuickLook, quick_look
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


_SHORT = {torch.float32: "f32", torch.float64: "f64"}


def summary_of(look: QuickLook) -> Summary:
    """The same of a tensor that was looked at before."""
    return Summary(
        dtype=_SHORT[look.dtype],
        shape=tuple(look.shape),
        device="cpu",
        layout="",
        nbytes=look.figures[0] * look.dtype.itemsize,
        requires_grad=look.requires_grad,
        stats=stats_of(look.figures),
        note="",
    )


def summarize(tensor: torch.Tensor, *, limit: int | None = None, brief: bool = False) -> Summary:
    """Describe any tensor; never raises. Reads at most `limit` elements, evenly spread.

    `brief` leaves out signs, subnormals and the mean magnitude, which the tensor line does not show.
    """
    with below_everything(), np.errstate(all="ignore"):
        if brief and (look := quick_look(tensor, limit=limit)) is not None:
            return summary_of(look)
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
