"""The terms of a loss: with which factor each loss function counts, where several are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layerstep._torch.saved import saved_tensor, saved_word

__all__ = [
    "MOVES",
    "below",
    "factor_of",
    "lowers_likelihood",
    "name_of",
    "operation",
    "smoothing_of",
    "terms_of",
]

MOST = 200
MOVES = frozenset(
    [
        "View",
        "Reshape",
        "UnsafeView",
        "Alias",
        "Transpose",
        "Permute",
        "T",
        "Unsqueeze",
        "Squeeze",
        "Select",
        "Slice",
        "Clone",
        "ToCopy",
        "Index",
        "IndexSelect",
        "AsStrided",
        "Expand",
        "Contiguous",
        "Split",
        "Unbind",
        "Cat",
        "Stack",
        "Gather",
        "Detach",
    ]
)
"""Operations that move values and do not change them."""


def name_of(node: Any) -> str:
    return str(node.name()).rpartition("::")[2]


def operation(node: Any) -> str:
    """`Softmax` of `SoftmaxBackward0`."""
    return name_of(node).partition("Backward")[0]


def below(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def factor_of(node: Any) -> float | None:
    """The number that a product or a quotient with one operand multiplies by; None if it is none."""
    if operation(node) not in ("Mul", "Div") or len(below(node)) != 1:
        return None
    held = saved_tensor(node, "other")
    value = float(held) if held is not None and held.numel() == 1 else saved_word(node, "other")
    if not isinstance(value, float | int) or not value:
        return None
    return float(value) if operation(node) == "Mul" else 1 / value


def terms_of(top: Any, is_term: Callable[[Any], bool]) -> tuple[dict[int, float], bool]:
    """The factors of the terms by the ids of their nodes, and whether they are the whole loss."""
    found: dict[int, float] = {}
    waiting, is_whole, seen = [(top, 1.0)] if top is not None else [], True, 0
    while waiting and seen < MOST:
        node, factor = waiting.pop()
        seen += 1
        if is_term(node):
            found[id(node)] = found.get(id(node), 0.0) + factor
            continue
        parts = _parts(node, factor)
        is_whole = is_whole and parts is not None
        waiting += parts or []
    return found, is_whole and not waiting


def _parts(node: Any, factor: float) -> list[tuple[Any, float]] | None:
    """What a node adds up, each with its factor; None if it does something else."""
    kind, under = operation(node), below(node)
    if kind in ("Add", "Sub"):
        alpha = saved_word(node, "alpha")
        last = float(alpha if isinstance(alpha, int | float) else 1) * (-1 if kind == "Sub" else 1)
        pairs = zip((each for each, _ in node.next_functions), (1.0, last), strict=False)
        return [(each, factor * weight) for each, weight in pairs if each is not None]
    if kind == "Neg":
        return [(under[0], -factor)]
    if kind in ("Sum", "Mean") and len(under) == 1 and operation(under[0]) in ("Stack", "Cat"):
        losses = below(under[0])
        each = factor / len(losses) if kind == "Mean" else factor
        return [(loss, each) for loss in losses]
    known = factor_of(node)
    if known is not None:
        return [(under[0], factor * known)]
    return [(under[0], factor)] if kind in MOVES and len(under) == 1 else None


def lowers_likelihood(top: Any, scale: float) -> bool:
    """Are log-probabilities of choices, times weights of their own, added to the loss with a plus?"""
    factors, _ = terms_of(top, _is_weighted_choice)
    return any(factor * scale > 0 for factor in factors.values())


def _is_weighted_choice(node: Any) -> bool:
    """`(log_prob * advantage).mean()`, of probabilities that were picked out."""
    product = below(node)[0] if operation(node) in ("Mean", "Sum") and below(node) else None
    if product is None or operation(product) != "Mul" or len(below(product)) != 1:
        return False
    weights, picked = saved_tensor(product, "other"), below(product)[0]
    weights = saved_tensor(product, "self") if weights is None else weights
    if weights is None or weights.numel() < 2:
        return False
    while operation(picked) in ("Squeeze", "View", "Unsqueeze") and len(below(picked)) == 1:
        picked = below(picked)[0]
    made = below(picked)[0] if operation(picked) in ("Gather", "Index") and below(picked) else None
    if made is None:
        return False
    is_normalised = operation(made) == "Sub" and any(operation(each) == "Logsumexp" for each in below(made))
    return is_normalised or operation(made) == "LogSoftmax"


def smoothing_of(node: Any) -> tuple[Any, float] | None:
    """The `nll_loss` of a cross-entropy with label smoothing, and how much is smoothed.

    Torch adds it to the mean over all classes: both sides lead to the same log-softmax.
    """
    sides = [(each, factor_of(each)) for each in below(node)] if operation(node) == "Add" else []
    if len(sides) != 2 or any(factor is None for _, factor in sides):
        return None
    for (one, factor), (other, rest) in (sides, sides[::-1]):
        hit = below(one)[0]
        is_hit = name_of(hit).startswith("NllLoss") and bool(below(hit))
        is_part = factor is not None and 0 < factor < 1 and rest is not None
        if is_hit and is_part and _leads_to(below(other)[0], below(hit)[0]):
            return hit, 1 - (factor or 0.0)
    return None


def _leads_to(node: Any, wanted: Any) -> bool:
    for _ in range(8):
        if node is wanted:
            return True
        under = below(node) if node is not None else []
        if len(under) != 1:
            return False
        node = under[0]
    return False
