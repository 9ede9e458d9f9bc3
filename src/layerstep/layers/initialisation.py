"""Which usual initialisations fit a parameter, and which of its properties are faults in any model."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from layerstep._torch import below_everything
from layerstep._torch.tensors import as_numpy
from layerstep.layers.weights import Figures, Weight
from layerstep.tensors.format import number
from layerstep.tensors.shapes import attempt

__all__ = ["Scheme", "SchemeMatch", "judge", "schemes_for"]

FEWEST = 64  # elements: with fewer, the error of their std is a third of it or more
ERRORS = 4.0  # standard errors by which std and mean may be off: refuses 1 in 16,000 wrongly
COINCIDE = 8.0  # of log-likelihood: schemes within e⁸ of each other count as equally likely
EXPLODING, FADING = 3.0, 100.0  # times He's std, and a part of it

Spread = Literal["uniform", "normal", "truncated"]
_KURTOSIS = {"uniform": 1.8, "normal": 3.0, "truncated": 2.3657}
_CUT = 0.8796  # the std of a normal distribution that is cut off at two


class Scheme(NamedTuple):
    """A way to draw weights, by its name and the standard deviation to expect."""

    short: str
    name: str
    std: float
    spread: Spread


class SchemeMatch(NamedTuple):
    """The result of a check of the initialisation, in a word and in full. A fault is one in any model."""

    short: str
    words: str
    is_fault: bool = False
    schemes: tuple[Scheme, ...] = ()
    """The schemes that fit, the likeliest first."""


def judge(weight: Weight, *, depth: int = 0) -> SchemeMatch:
    """Judge a parameter; `depth` is the number of layers of its stack."""
    figures = weight.figures
    if figures is None:
        return SchemeMatch("-", weight.note)
    if figures.bad:
        return SchemeMatch("NaN", f"{figures.bad:,} NaN or Inf", is_fault=True)
    if not weight.tensor.dtype.is_floating_point:
        return SchemeMatch("-", f"{weight.dtype}, not judged")
    is_matrix = len(weight.shape) >= 2 and weight.size > 1
    if not figures.std and weight.size > 1:
        return _constant(weight, figures, is_matrix=is_matrix)
    if figures.count < FEWEST:
        return SchemeMatch("few", "too few to tell")
    fault = _fault(weight, figures) if is_matrix else None
    if fault is not None:
        return fault
    if (
        is_matrix
        and figures.kurtosis > 2.2
        and (gain := attempt(lambda: _orthogonal_gain(weight.tensor), 0.0))
    ):
        more = f", gain {number(gain)}" if abs(gain - 1) > 1e-3 else ""
        return SchemeMatch("orthogonal", f"fits orthogonal{more}")
    return _best_match(figures, schemes_for(weight, depth=depth))


def _constant(weight: Weight, figures: Figures, *, is_matrix: bool) -> SchemeMatch:
    what = f"constant {number(figures.mean)}"
    if not figures.peak or figures.mean == 1:
        what = "ones" if figures.peak else "all zero" if is_matrix else "zeros"
    return SchemeMatch(what, f"{what}: every unit starts alike" if is_matrix else what, is_matrix)


def _fault(weight: Weight, figures: Figures) -> SchemeMatch | None:
    """A scale that fails in any deep model. Embeddings are exempt: they are looked up, not multiplied."""
    if isinstance(weight.module, nn.Embedding | nn.EmbeddingBag) or "weight" not in weight.attribute:
        return None
    usual = math.sqrt(2 / _fans(weight)[0])
    if figures.std > EXPLODING * usual:
        times = number(figures.std / usual)
        return SchemeMatch("explodes?", f"std {times}× He's {number(usual)}: may explode", is_fault=True)
    if figures.std * FADING < usual:
        part = f"1/{usual / figures.std:.0f}"
        return SchemeMatch("fades?", f"std {part} of He's {number(usual)}: the signal fades", is_fault=True)
    return None


def _fans(weight: Weight) -> tuple[int, int]:
    """Inputs and outputs of a unit, as `torch.nn.init` counts them; transformers' Conv1D is transposed."""
    rows, columns, *kernel = weight.shape
    if type(weight.module).__name__ == "Conv1D" and len(weight.shape) == 2:
        rows, columns = columns, rows
    field = math.prod(kernel)
    return max(1, columns * field), max(1, rows * field)


def schemes_for(weight: Weight, *, depth: int = 0) -> list[Scheme]:
    """The usual schemes for a parameter of this shape, torch's own default first."""
    own = _default(weight)
    if len(weight.shape) < 2:
        return own
    inputs, outputs = _fans(weight)
    found = own
    for short, name, variance in (
        ("Xavier", "Xavier", 2 / (inputs + outputs)),
        ("He", "Kaiming (He)", 2 / inputs),
        ("He out", "Kaiming (He) fan_out", 2 / outputs),
        ("LeCun", "LeCun", 1 / inputs),
    ):
        found.append(Scheme(f"{short} U", f"{name} uniform", math.sqrt(variance), "uniform"))
        found.append(Scheme(f"{short} N", f"{name} normal", math.sqrt(variance), "normal"))
    found.append(Scheme("N", "N(0, 0.02) of GPT-2 and BERT", 0.02, "normal"))
    found.append(Scheme("cut N", "N(0, 0.02) cut at 2σ", 0.02 * _CUT, "truncated"))
    if depth:
        name = f"N(0, 0.02/√(2·{depth})) of GPT-2's residual layers"
        found.append(Scheme("N/depth", name, 0.02 / math.sqrt(2 * depth), "normal"))
    return found


def _default(weight: Weight) -> list[Scheme]:
    """The schemes of torch's own layers. Reads no attribute that could run a parametrization."""
    module: Any = weight.module
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return [Scheme("default", "N(0, 1), torch's default", 1.0, "normal")]
    if isinstance(module, nn.MultiheadAttention):
        return []  # Xavier uniform, which is among the usual
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        inputs = int(module.hidden_size)
    elif len(weight.shape) >= 2:
        inputs = _fans(weight)[0]
    else:
        matrix = dict(module._parameters.items()).get("weight")  # of a scripted module it has no `get`
        if matrix is None or matrix.dim() < 2:
            return []
        inputs = math.prod(matrix.shape[1:])
    std = math.sqrt(1 / (3 * max(1, inputs)))
    return [Scheme("default", "Kaiming uniform (a=√5), torch's default", std, "uniform")]


def _best_match(figures: Figures, schemes: list[Scheme]) -> SchemeMatch:
    likely = [(_likelihood(figures, scheme), scheme) for scheme in schemes if _fits(figures, scheme)]
    if likely:
        likely.sort(key=lambda pair: -pair[0])
        best = likely[0][0]
        names = [s for score, s in likely if best - score < COINCIDE]
        names.sort(key=lambda scheme: scheme is not schemes[0])  # the default is the simplest explanation
        full = " or ".join(f"{s.name} (expected std {number(s.std)})" for s in names[:3])
        short = " or ".join(dict.fromkeys(s.short for s in names[:2]))
        return SchemeMatch(f"{short} {number(names[0].std)}", f"fits {full}", schemes=tuple(names))
    if not schemes:
        return SchemeMatch("trained", "no usual scheme, as trained")
    near = min(schemes, key=lambda scheme: abs(math.log(figures.std / scheme.std)))
    nearest = f"nearest {near.name} (expected std {number(near.std)})"
    return SchemeMatch("trained", f"no usual scheme, as trained; {nearest}")


def _fits(figures: Figures, scheme: Scheme) -> bool:
    """Std and mean within their sampling errors, and a distribution of that form."""
    n, std, kurtosis = figures.count, scheme.std, _KURTOSIS[scheme.spread]
    if abs(figures.std / std - 1) > ERRORS * math.sqrt((kurtosis - 1) / (4 * n)) + 1e-3:
        return False
    if abs(figures.mean) > ERRORS * std / math.sqrt(n) + 1e-3 * std:
        return False
    if scheme.spread == "uniform":  # the largest of n draws is nearly always within 20/n of it
        bound = std * math.sqrt(3)
        return bound * (1 - 20 / n - 5e-3) <= figures.peak <= bound * (1 + 5e-3)
    if scheme.spread == "truncated" and figures.peak > 2 * std / _CUT * (1 + 5e-3):
        return False
    return abs(figures.kurtosis - kurtosis) <= ERRORS * math.sqrt(24 / n) + 0.1


def _likelihood(figures: Figures, scheme: Scheme) -> float:
    """The log-likelihood of the elements under this scheme."""
    n = figures.count
    if scheme.spread == "uniform":
        return -n * math.log(2 * math.sqrt(3) * scheme.std)
    std = scheme.std if scheme.spread == "normal" else scheme.std / _CUT
    square = (figures.std**2 + figures.mean**2) / (2 * std**2)
    inside = math.log(math.erf(math.sqrt(2))) if scheme.spread == "truncated" else 0.0
    return -n * (math.log(std) + math.log(2 * math.pi) / 2 + square + inside)


def _orthogonal_gain(tensor: torch.Tensor) -> float:
    """The common length of rows that are orthogonal (columns, if those are fewer); else 0.

    Eight rows are enough: random rows deviate by 1/√width, orthogonal ones by rounding.
    """
    with below_everything():
        matrix = tensor.detach().flatten(1)
        if matrix.shape[0] > matrix.shape[1]:
            matrix = matrix.t()
        count, width = matrix.shape
        if count < 4:
            return 0.0
        some = as_numpy(matrix[:: -(-count // 8)].to("cpu", torch.float64))
    products = some @ some.T  # by numpy: torch starts its threads for these, 8 ms on a busy machine
    lengths = np.diag(products)
    off = max(np.abs(products - np.diag(lengths)).max(), lengths.max() - lengths.min())
    length = float(lengths.mean())
    return math.sqrt(length) if off < 0.1 * length / math.sqrt(width) else 0.0
