"""What the autograd graph of a loss tells: which loss function, over what, against which targets.

The graph is read when `backward()` begins and before it runs. Nothing is unpacked, and no operation is
watched, so reading it costs some 50 µs and changes nothing. It is followed from the loss down to the first
operation that has a parameter; what lies below is the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from layerstep._torch.graphs import node_number, shape_of_output
from layerstep._torch.saved import saved_tensor, saved_word
from layerstep.doctor.loss_terms import (
    MOVES,
    below,
    factor_of,
    lowers_likelihood,
    name_of,
    operation,
    smoothing_of,
    terms_of,
)
from layerstep.doctor.softmax_dims import beside_classes, not_last, over_batch, signed

__all__ = ["Criterion", "LossGraph", "read_graph"]

MOST_NODES = 400
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
_CRITERIA = {
    "NllLossBackward0": "nll",
    "NllLoss2DBackward0": "nll",
    "BinaryCrossEntropyBackward0": "bce",
    "BinaryCrossEntropyWithLogitsBackward0": "bce_logits",
    "MseLossBackward0": "mse",
    "SmoothL1LossBackward0": "smooth_l1",
    "HuberLossBackward0": "huber",
    "CtcLossBackward0": "ctc",
}
_TURNS = {"huber": "delta", "smooth_l1": "beta"}
_SHAPES = MOVES
_REDUCING = _SHAPES | {"Mean", "Sum", "Neg", "Mul", "Div"}
_MAKERS = {
    "Softmax": "softmax",
    "SafeSoftmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log_sigmoid",
    "Relu": "relu",
    "Tanh": "tanh",
    "Log": "log",
    "Exp": "exp",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a prediction and a target."""

    values: Tensor
    sign: int
    """1 if the target was taken from the prediction, -1 if it was the other way round."""
    made_by: frozenset[int]
    """The numbers of the nodes that the prediction comes from and that only moved its values."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """A loss function in the graph, with the tensors that its node holds."""

    kind: str
    reduction: str
    classes: int
    input_from: str
    enlarged: tuple[tuple[int, ...], ...]
    input: Tensor | None
    target: Tensor | None
    ignore_index: int | None = None
    is_alone: bool = False
    """Is it the whole loss, up to a factor?"""
    is_weighted: bool = False
    width: int = 0
    """The last size of what made its input: the outputs of the last layer."""
    beside: tuple[tuple[int, ...], int] | None = None
    """The shape of its softmax and the dimension it runs over, if that is not the one of the classes."""
    factor: float = math.nan
    """What it is multiplied by before it is added to other terms of the loss. NaN: that is not known."""
    smoothing: float = 0.0
    """How much of the labels is spread over all classes."""
    turn: float = 0.0
    """Where a Huber loss turns from a square into a line."""
    difference: Difference | None = None
    """Of a loss that is written out by hand."""


@dataclass(frozen=True, slots=True)
class LossGraph:
    """The part of the graph between the loss and the model."""

    scale: float
    criteria: tuple[Criterion, ...]
    over_batch: tuple[int, ...] = ()
    """The shape of a matrix whose softmax, near the loss, runs over its first dimension."""
    is_turned: bool = False
    """Is there a minus between the loss function and the loss?"""
    is_whole: bool = False
    """Is the loss the sum of these loss functions, each with its factor, and of nothing else?"""
    lowers_likelihood: bool = False
    """Are log-probabilities of choices, times weights of their own, added with a plus?"""


def read_graph(loss: Tensor) -> LossGraph:
    """What the graph behind a loss tells. Call it before its backward pass."""
    scale, top = _scale(loss.grad_fn)
    nodes = list(_above_the_model(top))
    alone = _sole(top)
    readers = (_criterion, _by_hand, _log_likelihood, _of_probabilities, _each_with_all)
    found: list[tuple[Any, Criterion]] = [
        (node, criterion) for read in readers for node in nodes if (criterion := read(node)) is not None
    ]
    found = _smoothed(found, nodes)
    known = {id(node) for node, _ in found}
    factors, is_whole = terms_of(top, lambda node: id(node) in known)
    return LossGraph(
        scale,
        tuple(
            replace(
                _reduced(each, alone) if node in alone else each,
                is_alone=node in alone,
                factor=factors.get(id(node), math.nan),
            )
            for node, each in found
        ),
        is_whole=is_whole and bool(found),
        over_batch=over_batch(top, lambda node: name_of(node) in _CRITERIA),
        lowers_likelihood=lowers_likelihood(top, scale),
        is_turned=scale < 0 or sum(operation(each) == "Neg" for each in alone) % 2 == 1,
    )


def _reduced(criterion: Criterion, above: list[Any]) -> Criterion:
    """`ctc_loss` does not tell its reduction: the operations behind it do."""
    if criterion.kind != "ctc":
        return criterion
    kinds = {operation(each) for each in above}
    return replace(criterion, reduction="mean" if "Mean" in kinds else "sum" if "Sum" in kinds else "none")


_Found = list[tuple[Any, Criterion]]


def _smoothed(found: _Found, nodes: list[Any]) -> _Found:
    """A cross-entropy with label smoothing is one loss function, made of several nodes."""
    for node in nodes:
        known = smoothing_of(node)
        if known is not None:
            hit, share = known
            found = [
                (node, replace(each, smoothing=share)) if place is hit else (place, each)
                for place, each in found
            ]
    return found


def _sole(node: Any) -> list[Any]:
    """The nodes from the loss down, as long as each has one below it: what they end in is the whole loss."""
    found: list[Any] = []
    while node is not None and len(found) < 8:
        found.append(node)
        under = below(node)
        node = under[0] if len(under) == 1 and operation(node) in _REDUCING and _is_scaling(node) else None
    return found


def _is_scaling(node: Any) -> bool:
    """A product with one number scales the loss; one with weights of samples makes another of it."""
    if operation(node) not in ("Mul", "Div"):
        return True
    factor = saved_tensor(node, "other")
    return factor is None or factor.numel() == 1


def _scale(node: Any) -> tuple[float, Any]:
    """The factors at the very end of the graph, as a gradient scaler or a division by the accumulated steps
    puts them there, and the node below them.
    """
    scale = 1.0
    while node is not None and (factor := factor_of(node)) is not None:
        scale *= factor
        node = below(node)[0]
    return scale, node


def _above_the_model(top: Any) -> Iterator[Any]:
    """The nodes from the loss down to those that have a parameter, which are the last of them."""
    waiting, seen = [top] if top is not None else [], set[int]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        under = below(node)
        if not any(name_of(each) == "AccumulateGrad" for each in under):
            waiting += under


def _moved(node: Any) -> Any:
    """The node that made the values, below those that only move them."""
    while node is not None and operation(node) in _SHAPES:
        under = below(node)
        if len(under) != 1:
            break
        node = under[0]
    return node


def _moves(node: Any) -> frozenset[int]:
    """The numbers of a node and of those below it, down to the one that made the values."""
    numbers = {node_number(node)}
    while operation(node) in _SHAPES and len(below(node)) == 1:
        node = below(node)[0]
        numbers.add(node_number(node))
    return frozenset(numbers)


def _maker(node: Any) -> str:
    node = _moved(node)
    if node is None:
        return ""
    return _MAKERS.get(operation(node), operation(node).lower())


def _criterion(node: Any) -> Criterion | None:
    kind = _CRITERIA.get(name_of(node))
    if kind is None:
        return None
    under = below(node)
    source = under[0] if under else None
    classes, given, beside = 0, saved_tensor(node, "self"), None
    if kind == "nll":
        made = _moved(source)
        shape = shape_of_output(made) if made is not None else None
        classes = shape[1 if len(shape) > 2 else -1] if shape else 0
        if made is not None and operation(made) == "LogSoftmax":
            kind, source = "cross_entropy", (below(made) or [None])[0]
            beside = beside_classes(made, given)
    elif kind == "ctc":
        beside = not_last(_moved(source))
    return Criterion(
        kind,
        _REDUCTIONS.get(saved_word(node, "reduction"), "none"),
        classes,
        input_from=_maker(source),
        enlarged=_enlarged(source) if kind in ("mse", "smooth_l1", "huber") else (),
        input=given,
        target=saved_tensor(node, "target"),
        ignore_index=signed(saved_word(node, "ignore_index")) if kind in ("nll", "cross_entropy") else None,
        is_weighted=any(saved_tensor(node, each) is not None for each in ("weight", "pos_weight")),
        width=_width(source),
        beside=beside,
        turn=float(saved_word(node, _TURNS[kind]) or 0.0) if kind in _TURNS else 0.0,
    )


def _width(node: Any) -> int:
    """The last size of what made the values, the channels of a convolution."""
    made = _moved(node)
    shape = shape_of_output(made) if made is not None else None
    if not shape:
        return 0
    return shape[1] if operation(made) == "Convolution" and len(shape) > 1 else shape[-1]


def _enlarged(node: Any) -> tuple[tuple[int, ...], ...]:
    """The shape of a prediction, and the larger one that broadcasting made of it."""
    if node is None or operation(node) != "Expand" or not below(node):
        return ()
    before, after = shape_of_output(below(node)[0]), shape_of_output(node)
    return (before, after) if before and after and before != after else ()


def _by_hand(node: Any) -> Criterion | None:
    """`((a - b) ** 2).mean()` and the like: a difference that a power or a magnitude follows."""
    if operation(node) not in ("Mean", "Sum") or not below(node):
        return None
    power = below(node)[0]
    kind = {"Pow": "mse", "Abs": "l1"}.get(operation(power))
    if kind is None or not below(power) or operation(below(power)[0]) != "Sub":
        return None
    difference = below(power)[0]
    sides = below(difference)
    after = shape_of_output(difference)
    before = (
        shape_of_output(sides[0]) if len(sides) == 1 else None
    )  # the other side has no gradient: the target
    is_larger = bool(before and after and before != after and operation(sides[0]) != "Unsqueeze")
    enlarged = _enlarged(sides[0]) if len(sides) == 1 else ()
    held = saved_tensor(power, "self") if len(sides) == 1 else None
    sign = 1 if difference.next_functions[0][0] is not None else -1
    origin = _moves(sides[0]) if len(sides) == 1 else frozenset[int]()
    is_whole = not shape_of_output(node)  # else it is a sum over the features of each sample
    return Criterion(
        kind,
        operation(node).lower() if is_whole else "none",
        0,
        input_from=_maker(sides[0]) if sides else "",
        enlarged=enlarged or ((before, after) if is_larger and before and after else ()),
        input=None,
        target=None,
        difference=Difference(held, sign, origin) if held is not None else None,
    )


def _each_with_all(node: Any) -> Criterion | None:
    """A difference of a prediction and something fixed in which broadcasting has paired each sample with all
    others, though nothing was made wider on purpose.
    """
    sides = below(node) if operation(node) == "Sub" else []
    if len(sides) != 1 or operation(sides[0]) in ("Unsqueeze", "Expand", "View", "UnsafeView"):
        return None
    before, after = shape_of_output(sides[0]), shape_of_output(node)
    if not before or not after or len(before) < 2 or len(after) != len(before) + 1:
        return None
    is_paired = after[0] == after[1] == before[0] > 1 and after[2:] == before[1:]
    return (
        Criterion("difference", "none", 0, _maker(sides[0]), (before, after), None, None)
        if is_paired
        else None
    )


def _log_likelihood(node: Any) -> Criterion | None:
    """`log_softmax(…)[rows, labels].mean()`: the mean of log-probabilities that were picked out."""
    picked = below(node)[0] if operation(node) in ("Mean", "Sum") and below(node) else None
    if picked is None or operation(picked) not in ("Gather", "Index", "Squeeze"):
        return None
    made = _moved(picked)
    if made is None or operation(made) != "LogSoftmax":
        return None
    return Criterion(
        "log_likelihood", operation(node).lower(), 0, input_from="", enlarged=(), input=None, target=None
    )


def _of_probabilities(node: Any) -> Criterion | None:
    """`cross_entropy` with a probability for each class: the sum of targets times log-probabilities."""
    product = below(node)[0] if operation(node) == "Sum" and below(node) else None
    made = _moved(below(product)[0]) if product is not None and len(below(product)) == 1 else None
    if product is None or made is None or operation(product) != "Mul" or operation(made) != "LogSoftmax":
        return None
    if not _are_probabilities(saved_tensor(product, "other"), shape_of_output(made)):
        return None
    source, shape = (below(made) or [None])[0], shape_of_output(made)
    return Criterion(
        "soft_cross_entropy",
        "mean",
        shape[1 if len(shape) > 2 else -1] if shape else 0,
        input_from=_maker(source),
        enlarged=(),
        input=None,
        target=None,
        width=_width(source),
    )


def _are_probabilities(target: Tensor | None, shape: tuple[int, ...] | None) -> bool:
    """Do these factors add up to 1 over the classes? Those of a policy gradient do not."""
    if target is None or not shape or tuple(target.shape) != shape or len(shape) < 2:
        return False
    total = target.detach().sum(1)
    return bool((target >= 0).all()) and bool(((total - 1).abs() < 1e-3).all())
