"""Run each kernel of a rerun also in float64, on the exact values of its operands: their shadows."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from layerstep._torch import below_everything
from layerstep._torch.operators import given_arguments, schema_of
from layerstep._torch.tensors import is_tensor
from layerstep.calls.operations import Kernels, name_of
from layerstep.precision.shadow_values import Shadows, has_shadow
from layerstep.rerun.module_call import Watcher
from layerstep.tensors.containers import tensors_of

__all__ = ["ShadowedOperand", "Shadower", "Step", "is_masked_twice", "relative_error"]

MOST_BYTES = 2 << 30
"""The most bytes of shadows alive at a time."""
SWEEP_EVERY = 32
"""Drop the shadows of freed memory after so many kernels, or after as many as there are shadows, because each
must be checked."""

_JUMPS = frozenset(
    re.findall(
        r"\S+",
        """round floor ceil trunc frac sign sgn heaviside fmod remainder floor_divide
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask""",
    )
)
"""Not continuous: an error in the last digit becomes a whole step. Their results are those of the run."""

_MOVES = frozenset(
    re.findall(
        r"\S+",
        """cat stack clone copy index index_select gather embedding take index_put _index_put_impl index_copy
        index_fill scatter scatter_add masked_fill masked_scatter masked_select where constant_pad_nd repeat
        repeat_interleave roll flip tril triu fill zero full_like zeros_like ones_like empty_like new_full
        new_zeros new_ones new_empty lift_fresh lift_fresh_copy detach contiguous reshape slice_scatter
        select_scatter diag_embed max_pool2d_with_indices max_pool3d_with_indices topk sort unfold_copy
        _reshape_copy _unsafe_view pixel_shuffle bernoulli""",
    )
)
"""They move values and compute none, so they lose nothing."""

_SAFE = ("aten", "prims", "torchvision")
"""Other namespaces are not run in float64: their kernels may not check for it, or talk to other processes."""

_SAVES = re.compile(r"norm|scaled_dot_product")
"""Their other results are for the backward, and do not count: the mean of centred values is noise."""


class ShadowedOperand(NamedTuple):
    """An operand of a kernel: its values and those of its shadow, from before the kernel."""

    name: str
    real: Tensor
    shadow: Tensor
    is_exact: bool
    """Do the real values count as exact? Those of weights and the module's inputs do."""


@dataclass(slots=True, eq=False)
class Step:
    """One kernel, run on the real operands and on their shadows. Holds live tensors."""

    func: Any
    name: str
    """`sub`, `native_layer_norm`: the kernel without its namespace, and without the `_` of in place."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: list[ShadowedOperand]
    results: list[tuple[Tensor, Tensor]]
    """(real, shadow) of each result that has one."""
    in_float64: Callable[[], list[Tensor]]
    """The kernel in float64 on the real operands."""

    def after(self) -> float:
        """The relative error of its result, inherited or its own."""
        return max((relative_error(real, shadow) for real, shadow in self.results), default=0.0)

    def before(self) -> float:
        """The largest relative error of its operands."""
        rough = (each for each in self.operands if not each.is_exact)
        return max((relative_error(each.real, each.shadow) for each in rough), default=0.0)

    def own(self) -> float:
        """Its own rounding: the error that it would have with exact operands."""
        try:
            with below_everything():
                right = self.in_float64()
        except Exception:  # no float64 kernel for it
            return math.nan
        pairs = zip(self.results, right, strict=False)
        return max((relative_error(real, value) for (real, _), value in pairs), default=0.0)


def relative_error(real: Tensor, right: Tensor) -> float:
    """The largest relative difference: to the value itself, or for a small one to the root mean square of
    all.

    Inf where one is finite and the other is not. Elements that are finite in neither do not count.
    """
    with below_everything():
        if real.shape != right.shape or not real.numel():
            return 0.0
        values, most = real.detach().to(torch.float64), torch.finfo(real.dtype).max
        gap, size = (values - right).abs_(), right.abs()
        counted, ordinary = size, size < 0.5 * most  # neither NaN nor Inf nor a mask
        if not bool(ordinary.all()):
            gap[(values == right) | is_masked_twice(real, right) | ~right.isfinite()] = 0.0
            counted = size[ordinary]
            size.nan_to_num_(0.0)
        mean = float(counted.square().mean().sqrt()) if counted.numel() else 0.0
        if not mean and not bool(size.any()):
            return 0.0  # all zeros: there is no scale for an error
        gap /= size.clamp_min_(max(mean, torch.finfo(torch.float64).tiny))
        worst = float(gap.max())
        return math.inf if math.isnan(worst) else worst


def is_masked_twice(real: Tensor, right: Tensor) -> Tensor:
    """Where a mask, the least number of the dtype, was added to itself: -inf, but finite in float64."""
    most = torch.finfo(real.dtype).max
    masked = (real == -math.inf) & (right <= -1.99 * most)
    return masked & (right >= -2.01 * most) if most < 1e30 else masked


class Shadower(Watcher):
    """Runs every kernel of a rerun also in float64, and reports each that computes something."""

    def __init__(self, hear: Callable[[Step], None], *, seconds: float, budget: int = MOST_BYTES) -> None:
        super().__init__()
        self.shadows = Shadows(budget)
        self.steps = 0
        """Kernels that were shadowed."""
        self.unshadowed: dict[str, int] = {}
        """Kernels that could not be followed, by name. Their results from the run count as exact."""
        self.ended = ""
        """Why the shadows ended before the module did."""
        self._hear = hear
        self._began = math.inf
        self._seconds = seconds
        self._seen = 0
        self._due = SWEEP_EVERY
        self._kernels: Kernels | None = None

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._kernels = Kernels(self._around)
        self._kernels.__enter__()
        self._began = time.monotonic()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._kernels is not None:
            self._kernels.__exit__(*error)
            self._kernels = None  # it refers to us: without it the shadows are freed with their last user
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def elapsed(self) -> float:
        """Seconds since the rerun began."""
        return time.monotonic() - self._began

    def error_of(self, output: Tensor) -> float | None:
        """The relative error of a tensor that the module returned; None if it has no shadow."""
        with below_everything():
            if not has_shadow(output) or not self.shadows.has(output):
                return None
            shadow = self.shadows.of(output)
        return None if shadow is None else relative_error(output, shadow)

    def _around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.ended:
            return func(*args, **kwargs)
        twin = None
        with below_everything():
            try:
                twin = _Twin(self.shadows, func, args, kwargs)
            except Exception:  # a kind of tensor that cannot be cast
                self._count(func)
        result = func(*args, **kwargs)
        if twin is not None and (twin.operands or twin.is_half_seen or twin.overwritten):
            with below_everything():
                self._follow(twin, result)
        return result

    def _follow(self, twin: _Twin, result: Any) -> None:
        try:
            step = twin.run(result)
        except Exception:  # no such kernel in float64: what it has written counts as exact
            self._count(twin.func)
            twin.take_real()
            step = None
        for tensor in twin.overwritten:
            self.shadows.forget(tensor)
        if step is None and twin.makes_unseen(result):
            self._count(twin.func)
        if step is not None and step.results:
            self.steps += 1
            if step.name not in _MOVES:
                self._hear(step)
        self._seen += 1
        if self._seen >= self._due or self.shadows.nbytes > self.shadows.budget:
            if not self.shadows.sweep():
                self._end("it would take too much memory")
            self._due = self._seen + max(SWEEP_EVERY, len(self.shadows))
        if self.elapsed > self._seconds:
            self._end(f"{self._seconds:g} seconds are over")

    def _end(self, why: str) -> None:
        self.ended = why
        self.shadows.clear()

    def _count(self, func: Any) -> None:
        name = name_of(func)
        self.unshadowed[name] = self.unshadowed.get(name, 0) + 1


class _Twin:
    """One kernel's call, and the same on the shadows of its operands."""

    def __init__(self, shadows: Shadows, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.shadows, self.func, self.args, self.kwargs = shadows, func, args, kwargs
        self._home, _, name = str(schema_of(func).name).partition("::")
        self.name = name.removesuffix("_")
        self.operands: list[ShadowedOperand] = []
        self.written: list[Tensor] = []
        self.overwritten: list[Tensor] = []
        """Written operands that are not followed: they may share memory with floats."""
        self.is_half_seen = False
        """Does an operand have numbers that are not followed: complex, sparse, nested, of a subclass?"""
        self._live: dict[int, Tensor] = {}
        self._reals: dict[int, Tensor] = {}
        self._spare: dict[int, Tensor] = {}
        """Memory for outputs that are not followed, such as the integers of a `topk(…, out=…)`."""
        self._keys: set[StorageWeakRef] = set()
        for name, value, writes in given_arguments(func, args, kwargs):
            for tensor in tensors_of(value):
                self._take(name, tensor, writes)

    def _take(self, name: str, tensor: Tensor, writes: bool) -> None:
        if id(tensor) in self._live:
            return
        shadow = self.shadows.of(tensor)
        if shadow is None:
            self.is_half_seen |= tensor.is_floating_point() or tensor.is_complex()
            if writes:
                self.overwritten.append(tensor)
                self._spare[id(tensor)] = tensor.clone()
            return
        self._live[id(tensor)] = shadow
        self._keys.add(StorageWeakRef(tensor.untyped_storage()))
        real, before = tensor, shadow
        if writes:
            self.written.append(tensor)
            real, before = tensor.detach().clone(), shadow.clone()
        self._reals[id(tensor)] = real
        self.operands.append(ShadowedOperand(name, real, before, self.shadows.is_exact(tensor)))

    def run(self, result: Any) -> Step | None:
        """Follow the kernel with the shadows; None where there is nothing to follow."""
        fresh = [each for each in tensors_of(result) if has_shadow(each)]
        if not self.written and all(StorageWeakRef(each.untyped_storage()) in self._keys for each in fresh):
            return None  # a view, or no floats: the shadow of it is there already
        if self.is_half_seen or self._is_of_the_run():
            self.take_real()
            return None
        if self._home not in _SAFE:
            raise NotImplementedError(self.name)
        answer = self.func(*_mapped(self.args, self._shadow), **_mapped(self.kwargs, self._shadow))
        for tensor in self.written:
            self.shadows.was_written(tensor)
        pairs = []
        for real, shadow in zip(tensors_of(result), tensors_of(answer), strict=True):
            if not has_shadow(real):
                continue
            key = StorageWeakRef(real.untyped_storage())
            if key not in self._keys:
                ours = {each.untyped_storage().data_ptr() for each in self._live.values()}
                own = shadow.untyped_storage().data_ptr() not in ours
                self.shadows.put(real, shadow.to(torch.float64), may_keep=own)
            if (right := self.shadows.of(real)) is not None:
                pairs.append((real, right))
        if _SAVES.search(self.name):
            del pairs[1:]
        return Step(self.func, self.name, self.args, self.kwargs, self.operands, pairs, self._in_float64)

    def makes_unseen(self, result: Any) -> bool:
        """Did a number come from values that are not followed, or go into such?"""
        if self._is_of_the_run():
            return False
        made = [each for each in tensors_of(result) if each.is_floating_point() or each.is_complex()]
        own = [each for each in made if not (has_shadow(each) and self.shadows.has(each))]
        return bool(own) and (self.is_half_seen or any(each.is_complex() for each in own))

    def _is_of_the_run(self) -> bool:
        """Does it draw random numbers, or jump? Then its results count as exact."""
        if self.name in _JUMPS or self.kwargs.get("rounding_mode") is not None:
            return True
        if torch.Tag.nondeterministic_seeded not in self.func.tags:
            return False
        given = {name: value for name, value, _ in given_arguments(self.func, self.args, self.kwargs)}
        return "scaled_dot_product" not in self.name or bool(given.get("dropout_p"))

    def take_real(self) -> None:
        """Count what the kernel has written as exact."""
        for tensor in self.written:
            shadow = self._live[id(tensor)]
            shadow.copy_(tensor)

    def _shadow(self, value: Any) -> Any:
        if is_tensor(value):
            return self._live.get(id(value), self._spare.get(id(value), value))
        return self._plain(value)

    def _in_float64(self) -> list[Tensor]:
        """Run it in float64 on the real operands as they were before it."""

        def cast(value: Any) -> Any:
            if not is_tensor(value):
                return self._plain(value)
            real = self._reals.get(id(value))
            return self._spare.get(id(value), value) if real is None else real.to(torch.float64, copy=True)

        answer = self.func(*_mapped(self.args, cast), **_mapped(self.kwargs, cast))
        return [each for each in tensors_of(answer) if each.is_floating_point()]

    def _plain(self, value: Any) -> Any:
        """Replace a float dtype by float64; the `half_to_float` of a softmax does not exist for it."""
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        if value is True and self.name in ("_softmax", "_log_softmax"):
            return False
        return value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    return change(value)
