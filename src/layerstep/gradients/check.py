"""Is a module's backward the derivative of its forward? Central differences against autograd.

Everything runs on copies of the inputs and the module, in double precision if the module supports it. Random
streams and buffers are put back before each evaluation, so that all have the same noise. A key-value cache is
used as it is.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerstep._torch import drop_backward_hooks
from layerstep._torch.process_state import parametrizations_kept
from layerstep._torch.tensors import is_tensor
from layerstep._torch.trees import tree_flatten, tree_leaves, tree_unflatten
from layerstep.errors import UserError
from layerstep.rerun.twins import twin_of
from layerstep.side_effects.random_streams import RandomState

__all__ = ["Check", "Checked", "Difference", "GradCheck"]

ELEMENTS = 6
"""Elements of each tensor to check: half of them where autograd's gradient is largest."""
SECONDS = 5.0
MOST_LEAVES = 32
MOST_VALUES = 1 << 25
STEPS = {torch.float64: (1e-6, 1e-4, 1e-3, 1e-2), torch.float32: (1e-3, 1e-2, 3e-2)}
"""Steps of the differences, relative to the value.

Several, because a module may round to less than double.
"""
TOLERANCE = {torch.float64: 1e-3, torch.float32: 3e-2}


@dataclass(frozen=True, slots=True)
class Difference:
    """One element: its derivative by autograd and by differences."""

    index: tuple[int, ...]
    autograd: float
    numeric: float


@dataclass(frozen=True, slots=True)
class Checked:
    """An input or parameter: how many elements agree, which do not, how many have no clear derivative."""

    name: str
    shape: tuple[int, ...]
    agree: int
    wrong: tuple[Difference, ...]
    unclear: int
    has_gradient: bool

    @property
    def factor(self) -> float | None:
        """The factor by which autograd is off, if all wrong elements share it: -1 is a wrong sign."""
        if len(self.wrong) < 2 or any(not each.numeric for each in self.wrong):
            return None
        ratios = [each.autograd / each.numeric for each in self.wrong]
        return (
            ratios[0] if all(math.isclose(r, ratios[0], rel_tol=1e-2, abs_tol=1e-3) for r in ratios) else None
        )


@dataclass(frozen=True, slots=True)
class Check:
    """The result for each input and parameter."""

    checked: tuple[Checked, ...]
    dtype: torch.dtype
    left: int
    """How many elements were not reached in time."""


class GradCheck(nn.Module):
    """Runs in place of the module: its forward checks the module's derivative at its arguments."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Check:
        if sum(tensor.numel() for tensor in self.module.parameters()) > MOST_VALUES:
            raise UserError(f"it has more than {MOST_VALUES:,} parameters", "name a part of it")
        streams = RandomState()
        with torch.enable_grad(), parametrizations_kept(empty=True):
            try:
                return _check(_Trial(self.module, args, kwargs, dtype=torch.float64))
            except UserError:
                raise
            except Exception:  # some kernels take single precision only
                return _check(_Trial(self.module, args, kwargs, dtype=torch.float32))
            finally:
                streams.restore()  # because each evaluation puts them back


def _check(trial: _Trial) -> Check:
    until = time.monotonic() + SECONDS
    names = list(trial.leaves)[:MOST_LEAVES]
    plans = {name: _chosen(trial.gradients[name], trial.leaves[name]) for name in names}
    results: dict[str, list[tuple[str, Difference]]] = {name: [] for name in names}
    for turn in range(ELEMENTS):  # each tensor in turn, to share the time
        for name in names:
            if turn < len(plans[name]) and (time.monotonic() < until or not turn):
                results[name].append(trial.compare(name, plans[name][turn]))
    left = sum(len(plans[name]) - len(results[name]) for name in names)
    left += ELEMENTS * (len(trial.leaves) - len(names))
    return Check(tuple(_summed_up(name, trial, results[name]) for name in names), trial.dtype, left)


class _Trial:
    """A copy of the module as a function of its floating inputs and parameters: one number, its gradient."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._module = _twin(module).to(dtype)
        self._flat, self._form = tree_flatten((args, kwargs))
        self._inputs = self._inputs_by_id()
        parameters = {name: p for name, p in self._module.named_parameters() if _is_float(p)}
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        self.leaves: dict[str, Tensor] = {**dict(self._inputs.values()), **parameters}
        if not self.leaves:
            raise UserError("it has neither floating inputs nor parameters: nothing to differentiate")
        for leaf in self.leaves.values():
            leaf.requires_grad_(True)
        self._streams = RandomState()
        self._weights: list[Tensor] = []
        self._size = 0.0
        value = self._evaluate()
        found: Any = [None] * len(self.leaves)
        if value.requires_grad:
            found = torch.autograd.grad(value, list(self.leaves.values()), allow_unused=True)
        self.gradients: dict[str, Tensor | None] = dict(zip(self.leaves, found, strict=True))

    def _inputs_by_id(self) -> dict[int, tuple[str, Tensor]]:
        """The floating inputs by id: one tensor in two places stays one, as self-attention needs it."""
        given = {id(value): value for value in self._flat if _is_float(value)}
        names = ["input"] if len(given) == 1 else [f"input {number}" for number in range(len(given))]
        copies = (value.detach().to(self.dtype, copy=True) for value in given.values())
        return dict(zip(given, zip(names, copies, strict=True), strict=True))

    def _evaluate(self) -> Tensor:
        """The outputs, each element with a fixed weight, as one number."""
        self._streams.restore()
        with torch.no_grad():
            for buffer, content in self._buffers:
                buffer.copy_(content)
        given = {key: leaf.clone() for key, (_, leaf) in self._inputs.items()}  # it may write to its input
        args, kwargs = tree_unflatten([given.get(id(v), v) for v in self._flat], self._form)
        output = self._module(*args, **kwargs)
        outputs = [value for value in tree_leaves(output) if _is_float(value)]
        if not outputs:
            raise UserError("its output holds no floating tensor")
        if not self._weights:
            draw = np.random.default_rng(0)
            shapes = (tuple(value.shape) for value in outputs)
            self._weights = [torch.from_numpy(draw.uniform(0.5, 1.5, size=shape)) for shape in shapes]
        weighted = [v.double().cpu() * w for v, w in zip(outputs, self._weights, strict=True)]
        self._size = math.hypot(*(float(value.detach().norm()) for value in weighted))
        return torch.stack([value.sum() for value in weighted]).sum()

    def compare(self, name: str, index: tuple[int, ...]) -> tuple[str, Difference]:
        """`agree`, `wrong` or `unclear`: near a kink, or where rounding hides the slope."""
        gradient = self.gradients[name]
        said = float(gradient[index]) if gradient is not None else 0.0
        found: list[tuple[float, float, float]] = []
        for step in STEPS[self.dtype]:
            try:
                found.append(self._slopes(name, index, step))
            except Exception:  # it may refuse values far from its inputs
                return "unclear", Difference(index, said, math.nan)
            if self._is_close(said, found[-1][0], found[-1][0], step):
                return "agree", Difference(index, said, found[-1][0])
        for (one, left, right), (other, _, _), step in zip(
            found, found[1:], STEPS[self.dtype][1:], strict=False
        ):
            if self._is_close(one, other, other, step) and self._is_close(left, right, one, step):
                return "wrong", Difference(index, said, one)
        return "unclear", Difference(index, said, found[0][0])

    def _slopes(self, name: str, index: tuple[int, ...], step: float) -> tuple[float, float, float]:
        """The slope across a value, and those to its left and right."""
        leaf = self.leaves[name]
        with torch.no_grad():
            middle = leaf[index].item()
            width = step * max(1.0, abs(middle))
            values = []
            try:
                for at in (middle - width, middle, middle + width):
                    leaf[index] = at
                    with torch.enable_grad():  # without it some modules compute differently
                        values.append(float(self._evaluate().detach()))
            finally:
                leaf[index] = middle
        low, here, high = values
        return (high - low) / (2 * width), (here - low) / width, (high - here) / width

    def _is_close(self, one: float, other: float, scale: float, step: float) -> bool:
        """Are they equal within the tolerance, or within the rounding of a difference of large numbers?"""
        noise = 100 * torch.finfo(self.dtype).eps * self._size / step
        return abs(one - other) <= TOLERANCE[self.dtype] * max(abs(one), abs(other), abs(scale)) + noise


def _is_float(value: Any) -> bool:
    return is_tensor(value) and value.dtype.is_floating_point and value.numel() > 0


def _chosen(gradient: Tensor | None, leaf: Tensor) -> list[tuple[int, ...]]:
    """The elements to check: the largest ones, and some spread evenly."""
    with torch.no_grad():
        spread = np.linspace(0, leaf.numel() - 1, ELEMENTS // 2).astype(int).tolist()
        largest: list[int] = []
        if gradient is not None:
            count = min(ELEMENTS - len(spread), leaf.numel())
            largest = gradient.abs().flatten().nan_to_num(0).topk(count).indices.tolist()
        places = list(dict.fromkeys([*largest, *spread]))
    return [tuple(int(i) for i in np.unravel_index(place, tuple(leaf.shape))) for place in places]


def _summed_up(name: str, trial: _Trial, results: list[tuple[str, Difference]]) -> Checked:
    wrong = tuple(difference for verdict, difference in results if verdict == "wrong")
    agree, unclear = (sum(verdict == word for verdict, _ in results) for word in ("agree", "unclear"))
    shape, has_gradient = tuple(trial.leaves[name].shape), trial.gradients[name] is not None
    return Checked(name, shape, agree, wrong, unclear, has_gradient)


def _twin(module: nn.Module) -> nn.Module:
    """A copy without backward hooks: the user's hooks must not see our backward passes."""
    try:
        twin = twin_of(module)
    except UserError as error:
        raise UserError(error.message, "name a part of it") from None
    drop_backward_hooks(twin)
    return twin
