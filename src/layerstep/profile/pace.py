"""The pace of the machine: a small fixed piece of work, timed between the steps.

On a machine that others use the same step takes 1.0 or 1.5 times as long from one second to the next. This
work does, too, and comparisons divide by it. It is a layer, forward and backward and its update, since a
neighbour on the core slows a product of matrices by 25 % where it slows a loop of Python by 2 %. Several
layers take turns, each in memory of its own: with one alone, the place of its memory would make 3 %.
"""

from __future__ import annotations

import torch

from layerstep.profile import machine
from layerstep.tensors.observing import observing

__all__ = ["Pace"]

SHARE = 0.025
"""The share of the time that it may take."""
MOST = 20
"""How often it runs after one step at most."""
FORGIVEN = 50
"""After a run that took too long, it skips so many steps at most."""
LAYERS = 8
SHAPES = ((256, 256),) * 2 + ((128, 256),) * 4
"""Shapes: a weight and its gradient; the layer's input and output, and their gradients."""


class Pace:
    """Times the fixed work. It keeps about 8 MB while steps are timed."""

    def __init__(self) -> None:
        self._work: _Work | None = None
        self._owed = 0.0

    def measure_for(self, seconds: float) -> list[float]:
        """Run the work after a step of so many seconds; the seconds that each time took."""
        found: list[float] = []
        share = SHARE * seconds
        self._owed += share
        with observing():
            if self._work is None:
                self._work = _Work()
                self._work.once()
            while self._owed > 0 and len(found) < MOST:
                found.append(self._work.once())
                self._owed -= found[-1]
        self._owed = max(min(self._owed, share), -FORGIVEN * share)
        return found

    def clear(self) -> None:
        self._work, self._owed = None, 0.0


class _Work:
    """Layers with a GELU, one after the other. Allocates nothing and leaves the weights as they are.

    Between two uses we keep only their storages, so that a census of the program's tensors finds none of
    ours.
    """

    def __init__(self) -> None:
        self._layers = [[_filled(shape) for shape in SHAPES] for _ in range(LAYERS)]
        self._turn = 0

    def once(self) -> float:
        """The seconds that it took."""
        self._turn = (self._turn + 1) % LAYERS
        weight, gradient, given, total, output, passed = map(_tensor, self._layers[self._turn], SHAPES)
        begin = machine.now()
        torch.mm(given, weight, out=total)
        torch.ops.aten.gelu.out(total, out=output)
        torch.ops.aten.gelu_backward.grad_input(output, total, grad_input=passed)
        torch.mm(passed.t(), given, out=gradient)
        torch.mm(passed, weight, out=output)
        weight.add_(gradient, alpha=0.0)
        return machine.now() - begin


def _filled(shape: tuple[int, int]) -> torch.UntypedStorage:
    return torch.full(shape, 0.05, device="cpu", dtype=torch.float32).untyped_storage()


def _tensor(storage: torch.UntypedStorage, shape: tuple[int, int]) -> torch.Tensor:
    empty = torch.empty(0, device="cpu", dtype=torch.float32)
    return empty.set_(storage, 0, shape, (shape[1], 1))
