"""Why an operation makes a NaN or Inf of finite operands: what is known of it, held against the numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from layerstep.tensors.finite import Bad, count_bad
from layerstep.tensors.observing import observing

__all__ = ["reason_for"]

Operands = dict[str, Tensor]


def reason_for(op: str, detail: str, operands: Operands, bad: Bad) -> str:
    """One line with a way out, or nothing where nothing is certain."""
    name = _plain_name(op, detail)
    rule = _RULES.get(name)
    if rule is None or not operands:
        return ""
    with observing():
        try:
            return rule(list(operands.values()), bad)
        except (RuntimeError, IndexError):
            return ""


def _plain_name(op: str, detail: str) -> str:
    """`sqrt'` for the derivative, `sqrt` for the function."""
    if op.startswith("the derivative of "):
        return detail.partition("Backward")[0].lower() + "'"
    return detail.partition(" ")[0].rpartition(".")[2].strip("_") or op.rpartition(".")[2]


def _count(mask: Tensor) -> str:
    return f"{int(mask.sum()):,} of {mask.numel():,}"


def _log(x: list[Tensor], bad: Bad) -> str:
    zero, negative = x[0] == 0, x[0] < 0
    if negative.any():
        return f"{_count(negative)} operands are negative; clamp before the logarithm"
    if zero.any():
        return f"{_count(zero)} operands are 0; add a small number, or use log_softmax or log1p"
    return ""


def _sqrt(x: list[Tensor], bad: Bad) -> str:
    negative = x[0] < 0
    return (
        f"{_count(negative)} operands are negative: rounding below 0? clamp first" if negative.any() else ""
    )


def _rsqrt(x: list[Tensor], bad: Bad) -> str:
    zero = x[0] == 0
    return f"{_count(zero)} operands are 0; add an epsilon" if zero.any() else _sqrt(x, bad)


def _div(x: list[Tensor], bad: Bad) -> str:
    divisor = x[-1]
    zero = divisor == 0
    if zero.any():
        what = "0 / 0" if bad.nan else "a division by 0"
        return f"{what}: {_count(zero)} divisors are 0; clamp the divisor, or add an epsilon"
    if not bad.nan:
        smallest = float(divisor.abs().min())
        return f"the smallest divisor is {smallest:.3g}: the quotient exceeds {_dtype(divisor)}"
    return ""


def _dtype(tensor: Tensor) -> str:
    info = torch.finfo(tensor.dtype)
    return f"{str(tensor.dtype).removeprefix('torch.')} (largest {info.max:.3g})"


def _exp(x: list[Tensor], bad: Bad) -> str:
    return f"exp({float(x[0].max()):.4g}) exceeds {_dtype(x[0])}; subtract the maximum, or use logsumexp"


def _product(x: list[Tensor], bad: Bad) -> str:
    largest = [float(each.abs().max()) for each in x if each.numel() and each.is_floating_point()]
    if bad.nan or not largest or any(count_bad(each).any for each in x):
        return ""
    sizes = " and ".join(f"{size:.3g}" for size in largest[:3])
    advice = (
        "scale down, or compute it in float32 or bfloat16" if x[0].dtype is torch.float16 else "scale down"
    )
    return f"operands up to {sizes}: the result exceeds {_dtype(x[0])}; {advice}"


def _softmax(x: list[Tensor], bad: Bad) -> str:
    empty = (x[0] == -torch.inf).all(dim=-1)
    if empty.any():
        return f"{_count(empty)} rows are all -inf: everything in them is masked; leave one entry unmasked"
    return "an operand is +inf" if (x[0] == torch.inf).any() else ""


def _arc(x: list[Tensor], bad: Bad) -> str:
    outside = x[0].abs() > 1
    return f"{_count(outside)} operands lie outside of [-1, 1]; clamp first" if outside.any() else ""


def _variance(x: list[Tensor], bad: Bad) -> str:
    return "the variance of one element with correction 1 is 0 / 0; use correction=0 (unbiased=False)"


def _subtract(x: list[Tensor], bad: Bad) -> str:
    infinite = [each for each in x if torch.isinf(each).any()]
    return "Inf minus Inf" if bad.nan and len(infinite) else _product(x, bad)


def _power(x: list[Tensor], bad: Bad) -> str:
    if bad.nan:
        return "a negative number to a power that is no whole number has no real value"
    zero = x[0] == 0
    return f"0 to a negative power, {_count(zero)} times" if zero.any() else _product(x[:1], bad)


def _at_zero(word: str) -> Callable[[list[Tensor], Bad], str]:
    def rule(x: list[Tensor], bad: Bad) -> str:
        zero = x[0] == 0
        if not zero.any():
            return ""
        return (
            f"the slope of {word} at 0 is infinite, and {_count(zero)} operands are 0; add an epsilon inside"
        )

    return rule


def _cast(x: list[Tensor], bad: Bad) -> str:
    return f"the largest operand is {float(x[0].abs().max()):.4g}: too large for the new dtype"


_RULES: dict[str, Callable[[list[Tensor], Bad], str]] = {
    "log": _log,
    "log2": _log,
    "log10": _log,
    "log1p": lambda x, bad: _log([x[0] + 1], bad),
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": lambda x, bad: _div(x, bad),
    "div": _div,
    "true_divide": _div,
    "exp": _exp,
    "expm1": _exp,
    "sum": _product,
    "cumsum": _product,
    "mul": _product,
    "mm": _product,
    "bmm": _product,
    "addmm": _product,
    "baddbmm": _product,
    "prod": _product,
    "add": _subtract,
    "sub": _subtract,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "acos": _arc,
    "asin": _arc,
    "var": _variance,
    "std": _variance,
    "pow": _power,
    "to_copy": _cast,
    "sqrt'": _at_zero("sqrt"),
    "pow'": _at_zero("this power"),
    "log'": _at_zero("log"),
    "acos'": lambda x, bad: "the slope of acos at 1 and -1 is infinite; clamp to less",
    "asin'": lambda x, bad: "the slope of asin at 1 and -1 is infinite; clamp to less",
}
