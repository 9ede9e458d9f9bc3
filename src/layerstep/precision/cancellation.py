"""Hazards of single ops, found while a rerun computes each op also in float64.

Lost digits are measured, not guessed: a difference that is small against its operands is named only if
float64 says that its digits are wrong, and if that reaches what the module returns.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from layerstep.calls.operations import place_of
from layerstep.precision.lost_digits import coarsest, is_lossy, module_here, tolerance_for
from layerstep.precision.shadow_run import ShadowedOperand, Step, is_masked_twice, relative_error
from layerstep.precision.stability import Kind, Severity, StabilityIssue, Thresholds
from layerstep.tensors.format import number, share
from layerstep.tensors.masks import LEAST as MASKED
from layerstep.tensors.shapes import dtype_name

__all__ = ["Hazards"]

MOST = 100
NEAR_END = 4
"""Powers of two between an exponential and the largest number of its dtype."""
COARSE_LOGITS = 0.25
"""Logits that are this far apart cannot be told apart: a probability is then off by a quarter."""
SHIFT = "subtract the maximum first: softmax, logsumexp"
WRONG = 0.5
"""A relative error that leaves no digit right."""

_DIFFERENCES = ("sub", "add", "rsub", "addcmul", "sum", "mean")
_LOGS = ("log", "log2", "log10")
_SQUARE_OF_MEAN = re.compile(r"(mul|pow|square)\((mean|div|sum)\(")
_MEAN_OF_SQUARE = re.compile(r"(mean|div|sum)\((sum\()?(mul|pow|square)\(")


@dataclass(frozen=True, slots=True)
class _Hazard:
    """An issue before its place is known. `is_loss`: it loses digits, measured against float64."""

    kind: Kind
    severity: Severity
    evidence: str
    advice: str
    is_loss: bool = False


class Hazards:
    """Gets every kernel of a rerun; `issues` are the findings."""

    def __init__(
        self, path_of: Callable[[nn.Module], str], *, thresholds: Thresholds, has_gradients: bool
    ) -> None:
        self.heard = 0
        self._found: dict[tuple[str, str, Kind], tuple[StabilityIssue, bool]] = {}
        self._path_of = path_of
        self._thresholds = thresholds
        self._has_gradients = has_gradients
        self._dtype = torch.float64
        self._made: dict[StorageWeakRef, str] = {}

    @property
    def tolerance(self) -> float:
        asked = self._thresholds.error
        return tolerance_for(self._dtype) if asked is None else asked

    def see(self, step: Step) -> None:
        self.heard += 1
        if coarsest(step).itemsize < 2:
            return  # dtypes with two digits lose digits everywhere, and few ops exist for them
        self._dtype = coarsest(step, self._dtype)
        for hazard in self._look(step):
            self._add(step, hazard)
        made = f"{step.name}({','.join(self._history(each.real) for each in step.operands)})"[:120]
        for real, _ in step.results:
            self._made[StorageWeakRef(real.untyped_storage())] = made

    def settle(self, error: float | None) -> list[StabilityIssue]:
        """The issues, given the error of the module's output; None: unknown.

        Lost digits that do not reach the output are no issue: the mean of centred values has no right digit,
        and needs none.
        """
        harmless = error is not None and error <= self.tolerance
        return [issue for issue, is_loss in self._found.values() if not (is_loss and harmless)]

    def _history(self, tensor: Tensor) -> str:
        """How a tensor was made: `mean(pow(x))`."""
        return self._made.get(StorageWeakRef(tensor.untyped_storage()), "x")

    def _add(self, step: Step, hazard: _Hazard) -> None:
        module, place = module_here(), place_of(sys._getframe())
        path = self._path_of(module) if module is not None else ""
        key = (path, f"{step.name} {place.name}", hazard.kind)
        if key in self._found or len(self._found) >= MOST:
            return
        where = f"{step.name} at {place}" if place.file else step.name
        issue = StabilityIssue(path, hazard.kind, hazard.severity, hazard.evidence, hazard.advice, where)
        self._found[key] = (issue, hazard.is_loss)

    def _look(self, step: Step) -> Iterator[_Hazard]:
        bad = [(real, shadow) for real, shadow in step.results if not _is_finite(real)]
        if bad:
            if all(_is_finite(each.real) for each in step.operands):
                yield from _nonfinite(step, *bad[0])
            return
        yield from self._lost(step)
        look = _RISKS.get(step.name)
        if look is not None:
            yield from look(step)
        if step.name == "sqrt" and self._has_gradients:
            yield from _sqrt(step)

    def _lost(self, step: Step) -> Iterator[_Hazard]:
        after = _after_softmax(step) if step.name in _SOFTMAXES else step.after()
        if not after > self.tolerance:
            return
        before, own = step.before(), step.own()
        if not is_lossy(before, after, own, tolerance=self.tolerance):
            return
        errors = f"relative error {number(before)} before, {number(after)} after"
        severity: Severity = "error" if after >= WRONG else "warn"
        kind, what, advice = self._explained(step, own > after / 2)
        yield _Hazard(kind, severity, f"{what}: {errors}", advice, is_loss=True)

    def _explained(self, step: Step, is_own: bool) -> tuple[Kind, str, str]:
        """The (kind, what happens, what to do) for an op that has lost digits."""
        real, right = step.results[0]
        vanished = int(((real == 0) & (right != 0)).sum())
        if is_own and vanished > real.numel() // 2:
            return "underflow", f"{share(vanished, real.numel())} of its results became 0", "scale up, or f32"
        if step.name in _DIFFERENCES and not is_own:
            return "cancellation", _shrinkage(step, right), self._instead(step)
        if step.name in _LOGS and _is_near_one(step.operands[0].shadow):
            return "cancellation", "the log of values near 1", "log1p(x) for log(1 + x)"
        if is_own:
            return "precision", f"{dtype_name(coarsest(step))} rounds", "a wider dtype for this op"
        return "precision", "it magnifies the error of its operands", "a wider dtype up to here"

    def _instead(self, step: Step) -> str:
        made = [self._history(each.real) for each in step.operands]
        if len(made) == 2 and _MEAN_OF_SQUARE.match(made[0]) and _SQUARE_OF_MEAN.match(made[1]):
            return "a variance as E[x²] - E[x]²: x.var(), or subtract the mean first"
        if len(made) == 1 and step.name in ("sub", "add") and made[0].startswith("exp("):
            return "expm1(x) for exp(x) - 1"
        if step.name in ("sum", "mean"):
            return "sum in f64, or the small terms first"
        return "rearrange, or compute the difference in f64"


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def _nonfinite(step: Step, real: Tensor, right: Tensor) -> Iterator[_Hazard]:
    """A result that is not finite, of finite operands."""
    bad, total = ~real.isfinite() & ~is_masked_twice(real, right), real.numel()
    if not bool(bad.any()):
        return
    beyond = int((bad & right.isfinite()).sum())
    if beyond:
        largest = number(float(right[bad & right.isfinite()].abs().max()))
        text = f"{beyond:,} of {total:,} results are not finite, in f64 up to {largest}"
        advice = (
            "subtract the maximum first: softmax, logsumexp"
            if step.name == "exp"
            else "scale, or bf16 or f32"
        )
        yield _Hazard("overflow", "error", text, advice)
        return
    nan, count = int(real.isnan().sum()), int(bad.sum())
    if not nan and step.name in ("add", "sub", "mul") and bool((real[bad] < 0).all()):
        return  # a mask is being made
    kind: Kind = "nan" if nan else "inf"
    zero, advice = _ZEROS.get(step.name, ("", ""))
    what = zero or f"{step.name} of finite operands"
    if not all(each.real.numel() for each in step.operands):
        what = f"{step.name} of no elements"
    severity: Severity = "error" if nan or step.name not in _LOGS else "warn"
    yield _Hazard(kind, severity, f"{what}: {count:,} of {total:,} results are not finite", advice)


_ZEROS = {
    "div": ("division by 0", "add an eps, or where() the zeros away before"),
    "reciprocal": ("division by 0", "add an eps, or where() the zeros away before"),
    "rsqrt": ("rsqrt of 0 or less", "add an eps inside"),
    "log": ("log of 0 or less", "clamp, xlogy, or log_softmax"),
    "log2": ("log of 0 or less", "clamp, xlogy, or log_softmax"),
    "log10": ("log of 0 or less", "clamp, xlogy, or log_softmax"),
    "sqrt": ("sqrt of a negative number", "clamp at 0; is it a variance that cancelled?"),
    "pow": ("pow outside its domain", "clamp the base"),
    "acos": ("acos outside [-1, 1]", "clamp to [-1, 1]"),
    "asin": ("asin outside [-1, 1]", "clamp to [-1, 1]"),
}


def _shrinkage(step: Step, right: Tensor) -> str:
    """How much smaller than its operands a difference is."""
    sizes = sum(_typical(each.shadow) for each in step.operands)
    scalars = [value for value in step.args if isinstance(value, int | float)]
    sizes += sum(abs(value) for value in scalars[:1])
    typical = _typical(right)
    if step.name in ("sum", "mean") or not typical or sizes < 2 * typical:
        return "a sum much smaller than its terms"
    return f"a difference {number(sizes / typical)} times smaller than its operands"


def _typical(values: Tensor) -> float:
    """The median magnitude."""
    flat = values.abs().flatten()
    return float(flat[:: max(1, flat.numel() >> 16)].median()) if flat.numel() else 0.0


def _is_near_one(values: Tensor) -> bool:
    return bool(((values - 1).abs() < 0.1).float().mean() > 0.5)


def _operand(step: Step, at: int) -> ShadowedOperand | None:
    return step.operands[at] if at < len(step.operands) else None


def _exponential(step: Step) -> Iterator[_Hazard]:
    given = _operand(step, 0)
    if given is None or not given.real.numel():
        return
    dtype, largest = step.results[0][0].dtype, float(given.real.max())
    end = math.log(torch.finfo(dtype).max)
    if largest > end - NEAR_END * math.log(2):
        text = f"exp of up to {number(largest)}; {dtype_name(dtype)} ends at {number(end)}"
        yield _Hazard("overflow", "warn", text, SHIFT)


_SOFTMAXES = ("_softmax", "_log_softmax", "_safe_softmax", "softmax")


def _rows_of(step: Step) -> tuple[Tensor, int] | None:
    """The largest logit of each row, and the dimension of the rows."""
    given = _operand(step, 0)
    if given is None or not given.real.numel() or not given.real.dim():
        return None
    dim = step.args[1] if len(step.args) > 1 and isinstance(step.args[1], int) else -1
    return given.real.amax(dim).float(), dim


def _after_softmax(step: Step) -> float:
    """The relative error of its result, without rows that are masked as a whole."""
    rows = _rows_of(step)
    if rows is None or not bool((rows[0] < MASKED).any()):
        return step.after()
    tops, dim = rows
    pairs = ((real.movedim(dim, -1), right.movedim(dim, -1)) for real, right in step.results)
    seen = tops >= MASKED
    return max((relative_error(real[seen], right[seen]) for real, right in pairs), default=0.0)


def _softmax(step: Step) -> Iterator[_Hazard]:
    rows = _rows_of(step)
    if rows is None:
        return
    tops, dtype = rows[0], step.operands[0].real.dtype
    tops = tops[tops.isfinite() & (tops > 0)]  # a row of -1e9 is masked as a whole
    largest = float(tops.max()) if tops.numel() else 0.0
    apart = largest * torch.finfo(dtype).eps / 2
    if apart > COARSE_LOGITS:
        kind = dtype_name(dtype)
        text = f"softmax of logits up to {number(largest)}: {kind} holds them to ±{number(apart)}"
        yield _Hazard("precision", "warn", text, "scale the logits down, or f32 from the product on")


def _division(step: Step) -> Iterator[_Hazard]:
    by = _operand(step, 0 if step.name == "reciprocal" else 1)
    if by is None:
        return
    sizes, tiny = by.real.abs(), torch.finfo(by.real.dtype).tiny
    few = int(((sizes < tiny) & (sizes > 0)).sum())
    if few:
        text = f"divides by {few:,} subnormal numbers, down to {number(float(sizes[sizes > 0].min()))}"
        yield _Hazard("underflow", "warn", text, "a larger eps in the denominator")


def _sqrt(step: Step) -> Iterator[_Hazard]:
    given = _operand(step, 0)
    zeros = int((given.real == 0).sum()) if given is not None else 0
    if given is not None and zeros:
        text = f"sqrt of 0 in {zeros:,} of {given.real.numel():,}: its gradient is Inf there"
        yield _Hazard("inf", "warn", text, "add an eps inside")


_RISKS: dict[str, Callable[[Step], Iterator[_Hazard]]] = {
    "exp": _exponential,
    **dict.fromkeys(_SOFTMAXES, _softmax),
    "div": _division,
    "reciprocal": _division,
}
