"""How far apart two runs may be by rounding alone.

The first model runs once more, with the result of each layer changed in its last digits, as another
implementation or another device would round it. How far that moves each value downstream is what rounding
can do there: through a softmax of large numbers or a difference of almost equal ones, that is much more than
the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.lockstepping.running import Arguments, trace_of
from layerstep.lockstepping.trace import Call, Kept, Trace
from layerstep.lockstepping.values import distance
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Noise", "eps_of", "local_tolerance", "noise_of", "terms_of"]

TIMES = 6.0
"""A difference counts from so many times what rounding was seen to do."""
SHARE = 0.25
"""Each result is changed by this share of what one layer may differ by."""

Eps = Mapping[int, float]
"""By the id of a call: the spacing of the coarser of the two dtypes that it is computed in."""


def eps_of(*dtypes: torch.dtype) -> float:
    """The spacing of the coarsest of some dtypes."""
    floats = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return max((torch.finfo(dtype).eps for dtype in floats), default=torch.finfo(torch.float32).eps)


def local_tolerance(eps: float, terms: int) -> float:
    """What one layer may differ by on equal inputs, if each result sums so many terms.

    Half precision sums in float32 and rounds once.
    """
    if eps > 1e-4:
        return 1.5 * eps
    return eps * (4 + math.sqrt(terms) / 8)


def terms_of(call: Call) -> int:
    """How many terms a result of the layer sums."""
    largest = max(call.weights.values(), key=lambda each: each.numel(), default=None)
    if largest is not None and largest.dim() > 1:
        return max(largest.numel() // largest.shape[0], largest.shape[0])
    return call.inputs[0].shape[-1] if call.inputs and call.inputs[0].shape else 1


class Noise:
    """By rounding alone: how far each input and output of the first run may be off."""

    def __init__(self, inputs: dict[int, float], outputs: dict[int, float]) -> None:
        self._inputs = inputs
        self._outputs = outputs

    def of_input(self, call: Call) -> float:
        return TIMES * self._inputs.get(id(call), 0.0)

    def of_output(self, call: Call) -> float:
        return TIMES * self._outputs.get(id(call), 0.0)


def noise_of(session: Session, run: Trace, model: nn.Module, given: Arguments, *, eps: Eps) -> Noise:
    """Run the first model again with other roundings, and measure."""
    order = iter(run.calls)
    twin: dict[int, Call] = {}
    generator = torch.Generator().manual_seed(1)

    def change(call: Call, output: Any) -> Any:
        if not call.is_leaf:
            return None
        known = partner.get(call.entered)
        if known is None:
            return None
        size = SHARE * local_tolerance(eps.get(id(known), eps_of(torch.float32)), terms_of(known))
        return _shaken(output, size, generator)

    partner = {call.entered: call for call in order}
    noisy = trace_of(session, model, _shaken_arguments(given, generator), title=run.title, change=change)
    for call in noisy.calls:
        same = partner.get(call.entered)
        if same is not None and same.path == call.path:
            twin[id(same)] = call
    inputs: dict[int, float] = {}
    outputs: dict[int, float] = {}
    with observing():
        for call in run.calls:
            if id(call) in twin:
                inputs[id(call)] = _moved(call.inputs, twin[id(call)].inputs)
                outputs[id(call)] = _moved(call.outputs, twin[id(call)].outputs)
    return Noise(inputs, outputs)


def _moved(before: list[Kept], after: list[Kept]) -> float:
    gaps = [distance(x, y) for x, y in zip(before, after, strict=False) if x.is_float and y.is_float]
    return max((gap for gap in gaps if gap is not None), default=0.0)


def _shaken(value: Any, size: float, generator: torch.Generator) -> Any:
    """The same value with each float moved a little; None if it holds no float at its top."""
    if is_tensor(value):
        is_plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if not value.is_floating_point() or not is_plain or value.is_nested:
            return None
        noise = torch.randn(value.shape, generator=generator).to(value.device)
        wide = value.detach().to(torch.float32) if value.dtype.itemsize < 4 else value.detach()
        moved: Tensor = wide * (1 + size * noise.to(wide.dtype))
        return moved.to(value.dtype)
    if type(value) in (tuple, list):
        items = [_shaken(item, size, generator) for item in value]
        return type(value)(new if new is not None else old for new, old in zip(items, value, strict=True))
    return None


def _shaken_arguments(given: Arguments, generator: torch.Generator) -> Arguments:
    def shaken(value: Any) -> Any:
        with observing():
            new = _shaken(value, torch.finfo(torch.float32).eps, generator)
        return value if new is None else new

    args = tuple(shaken(value) for value in given.args)
    return Arguments(args, {name: shaken(value) for name, value in given.kwargs.items()}, given.progress)
