"""Where a module loses digits: compares its kernels with float64, and finds the first that loses too many."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from layerstep._torch import call_frames, called_module
from layerstep.calls.operations import Place, place_of
from layerstep.precision.shadow_run import Step, relative_error
from layerstep.tensors.present import tensor_view
from layerstep.tensors.shapes import dtype_name
from layerstep.views import TensorView

__all__ = ["Loss", "Losses", "coarsest", "is_lossy", "module_here", "tolerance_for"]

TOLERANCE = 1e-3
"""The relative error that single precision stays below in any sound computation."""
EPSILONS = 16
"""The same for half precision, in units in the last place."""
MOST_TOLERANT = 0.5
MAGNIFIED = 4
"""Times the error of the operands: any computation grows errors by less."""
MOST = 8
LOOK_AT = 1 << 20


@dataclass(frozen=True, slots=True)
class Loss:
    """A kernel, its place, and the relative errors of its operands, its result and its own rounding."""

    op: str
    path: str
    place: Place
    dtype: str
    before: float
    after: float
    own: float
    operands: tuple[tuple[str, TensorView], ...] = ()

    @property
    def gain(self) -> float:
        """What the kernel has added to the error of its operands."""
        return self.after - self.before if self.before < math.inf else 0.0

    @property
    def why(self) -> str:
        if math.isinf(self.after):
            return f"finite in f64 and not in {self.dtype}: it is beyond its range"
        if self.own > self.after / 2:
            return f"its own rounding: {self.dtype} can do no better with these operands"
        return "it magnifies the error that its operands have; by itself it is exact enough"


def coarsest(step: Step, *others: torch.dtype) -> torch.dtype:
    """The dtype of a kernel's operands and results, or of others, that has the fewest digits."""
    dtypes = [each.real.dtype for each in step.operands] + [real.dtype for real, _ in step.results]
    return max((*dtypes, *others), key=lambda dtype: torch.finfo(dtype).eps)


def tolerance_for(dtype: torch.dtype) -> float:
    """The default for the error that one kernel may add."""
    return min(max(TOLERANCE, EPSILONS * float(torch.finfo(dtype).eps)), MOST_TOLERANT)


def is_lossy(before: float, after: float, own: float, *, tolerance: float) -> bool:
    """Did this kernel cause the error of its result? Else it was inherited, or grew little by little."""
    if not after > tolerance:
        return False
    return own > tolerance or (before <= tolerance and after > MAGNIFIED * before)


def module_here() -> nn.Module | None:
    """The innermost module that is running."""
    frame = next(call_frames(sys._getframe()), None)
    return called_module(frame)[0] if frame is not None else None


class Losses:
    """Gets every kernel of a rerun, and keeps the first that loses more than the tolerance, and the worst."""

    def __init__(self, path_of: Callable[[nn.Module], str], *, tolerance: float | None = None) -> None:
        self.first: Loss | None = None
        self.largest: Loss | None = None
        """The kernel whose result has the largest error, whatever caused it."""
        self.asked = tolerance
        self.dtype = torch.float64
        """The coarsest dtype so far: finer ones after it carry its errors."""
        self._path_of = path_of
        self._worst: dict[tuple[str, str, Place], Loss] = {}

    def see(self, step: Step) -> None:
        after = step.after()
        self.dtype = coarsest(step, self.dtype)
        if after > self.tolerance or self.largest is None or after > self._least():
            self._weigh(step, after)

    @property
    def tolerance(self) -> float:
        return tolerance_for(self.dtype) if self.asked is None else self.asked

    def _least(self) -> float:
        """The least error of a kernel among the worst."""
        return min(loss.gain for loss in self._worst.values()) if len(self._worst) >= MOST else 0.0

    def _weigh(self, step: Step, after: float) -> None:
        before, own = step.before(), step.own()
        module = module_here()
        path = self._path_of(module) if module is not None else ""
        is_first = self.first is None and is_lossy(before, after, own, tolerance=self.tolerance)
        loss = Loss(
            step.name,
            path,
            place_of(sys._getframe()),
            dtype_name(coarsest(step)),
            before,
            after,
            own,
            _lines(step) if is_first else (),
        )
        if is_first:
            self.first = loss
        if self.largest is None or after > self.largest.after:
            self.largest = loss
        key = (loss.op, path, loss.place)
        known = self._worst.get(key)
        if known is None or loss.gain > known.gain:
            self._worst[key] = loss
        if len(self._worst) > MOST:
            del self._worst[min(self._worst, key=lambda each: self._worst[each].gain)]

    @property
    def worst(self) -> list[Loss]:
        """The kernels that lost most, the worst first."""
        return sorted(self._worst.values(), key=lambda loss: -loss.gain)


def _lines(step: Step) -> tuple[tuple[str, TensorView], ...]:
    real, right = max(step.results, key=lambda pair: relative_error(*pair))
    lines = [*((each.name, each.real) for each in step.operands), ("result", real), ("in f64", right)]
    return tuple((name, tensor_view(tensor, limit=LOOK_AT)) for name, tensor in lines)
