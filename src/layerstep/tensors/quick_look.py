"""A look at a small dense tensor in some µs, as a recording takes one at each call of a layer.

It runs no operation of torch: numpy reads the memory as it lies there. Most of the time goes into code that
the layer has pushed out of the caches, so it makes few calls and builds nothing that can be built later.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from layerstep._torch.tensors import memory_of
from layerstep.tensors.blocks import BLOCK
from layerstep.tensors.counting import Figures, measure_small

__all__ = ["QuickLook", "quick_look"]

_OWN = (torch.Tensor, torch.nn.Parameter)


class QuickLook:
    """What was seen of a tensor; `summary_of` makes a summary of it."""

    __slots__ = ("dtype", "figures", "requires_grad", "shape", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, version: int, figures: Figures) -> None:
        self.tensor = weakref.ref(tensor)
        self.version = version
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.requires_grad = tensor.requires_grad
        self.figures = figures


def quick_look(tensor: torch.Tensor, *, limit: int | None, last: QuickLook | None = None) -> QuickLook | None:
    """The figures of a small tensor of the common kind; None of any other. Function modes must be off.

    `last` is the look before. A layer often returns the tensor that another has just returned, as dropout in
    eval mode does. If neither its version nor the sum of its values has changed, its figures are the same.
    """
    most = BLOCK if limit is None or limit > BLOCK else limit
    if type(tensor) not in _OWN or not 0 < tensor.numel() <= most or (found := memory_of(tensor)) is None:
        return None
    block, version = found
    before = None
    if last is not None and last.version == version >= 0 and last.tensor() is tensor:
        before = last.figures
    try:
        figures = _quiet.run(measure_small, block, before)
    except RuntimeError:  # a signal handler calls a model while this thread is in the context already
        return None
    return QuickLook(tensor, version, figures) if figures is not None else None


class _Quiet(threading.local):
    """For each thread a way to run what numpy says nothing about. `np.errstate` takes ten times as long.

    Before numpy 2 the settings were not of a context, but of the thread.
    """

    run: Callable[..., Any]

    def __init__(self) -> None:
        if int(np.__version__.partition(".")[0]) >= 2:
            self.run = contextvars.Context().run
            self.run(np.seterr, all="ignore")
        else:
            self.run = np.errstate(all="ignore")(lambda function, *args: function(*args))


_quiet = _Quiet()
