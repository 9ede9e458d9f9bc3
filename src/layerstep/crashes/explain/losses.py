"""Losses whose targets do not fit: classes out of range, dtypes, shapes."""

from __future__ import annotations

import re

from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, dtype_of, sizes
from layerstep.crashes.explain.indices import first_outside
from layerstep.tensors.format import place

__all__: list[str] = []


def _name(facts: Facts) -> str:
    return facts.subject if facts.is_layer else facts.op or "the loss"


def _both(facts: Facts) -> tuple[Tensor | None, Tensor | None]:
    logits, target = facts.argument("input"), facts.argument("target")
    return (
        logits if is_tensor(logits) else None,
        target if is_tensor(target) else None,
    )


@says(r"Target (-?\d+) is out of bounds", r"Assertion `?t >= 0 && t < n_classes")
def _class(facts: Facts, found: re.Match[str]) -> Explanation | None:
    logits, target = _both(facts)
    if logits is None or target is None:
        return None
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    ignored = facts.argument("ignore_index")
    ignored = getattr(facts.module, "ignore_index", -100) if ignored is None else ignored
    wrong = first_outside(target.masked_fill(target == ignored, 0), 0, classes)
    if wrong is None:
        return None
    value, at, count = wrong
    more = f" ({count} of them)" if count > 1 else ""
    cause = (
        f"{_name(facts)} got {sizes(logits)} and target {sizes(target)}: class {value} at {place(at)}{more}, "
        f"the logits have {classes} classes, 0 to {classes - 1}"
    )
    if value < 0:
        return Explanation(cause, f"ignore_index={value} if it marks labels to ignore")
    if value == classes and first_outside(target, 1, classes + 1) is None:
        return Explanation(cause, f"labels that begin with 1? target - 1; else num_classes={value + 1}")
    return Explanation(cause, f"num_classes is at least {value + 1}, or the labels are another dataset's")


@says(r"expected target dtype to be Long", r"expected scalar type Long but found")
def _dtype(facts: Facts, found: re.Match[str]) -> Explanation | None:
    logits, target = _both(facts)
    if logits is None or target is None:
        return None
    cause = (
        f"{_name(facts)} got {sizes(logits)} and target {sizes(target)}: target is {dtype_of(target)}, "
        "classes are int64"
    )
    if target.is_floating_point() and target.shape != logits.shape:
        return Explanation(
            cause, f"target.long() for class numbers; probabilities have the shape {sizes(logits)}"
        )
    return Explanation(cause, "target.long()")


@says(r"Expected target size (\[.*?\]), got (\[.*?\])", r"only batches of spatial targets supported")
def _tokens(facts: Facts, found: re.Match[str]) -> Explanation | None:
    logits, target = _both(facts)
    if logits is None or target is None:
        return None
    cause = (
        f"{_name(facts)} got logits {sizes(logits)} and target {sizes(target)}: the classes are dimension 1, "
        f"of size {logits.shape[1] if logits.dim() > 1 else '?'}, not the last one"
    )
    if logits.dim() == target.dim() + 1 and logits.shape[:-1] == target.shape:
        last = logits.dim() - 1
        return Explanation(
            cause, f"logits.flatten(0, {last - 1}) and target.flatten(), or logits.transpose(1, {last})"
        )
    return Explanation(cause, "logits [batch, classes, …] and target [batch, …]")


@says(r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)")
def _batches(facts: Facts, found: re.Match[str]) -> Explanation:
    logits, target = _both(facts)
    shapes = f" {sizes(logits)} and target {sizes(target)}" if logits is not None else ""
    fix = "flatten both the same way, or drop the same tokens of both"
    if target is not None and logits is not None and target.numel() == logits.shape[0]:
        fix = "target.flatten()"
    return Explanation(
        f"{_name(facts)} got{shapes}: a batch of {found[1]} logits and one of {found[2]} targets", fix
    )


@says(
    r"Target size \(torch\.Size\((\[.*?\])\)\) must be the same as input size \(torch\.Size\((\[.*?\])\)\)",
    r"Using a target size \(torch\.Size\((\[.*?\])\)\) that is different to the input size "
    r"\(torch\.Size\((\[.*?\])\)\)",
)
def _same_shape(facts: Facts, found: re.Match[str]) -> Explanation:
    target, given = found.groups()
    cause = f"{_name(facts)} got input {given} and target {target}: they must have one shape"
    if given == target[:-1] + ", 1]":
        return Explanation(cause, "input.squeeze(-1), or target.unsqueeze(-1)")
    return Explanation(cause, "reshape the target as the input is")


@says(r"all elements of (input|target) should be between 0 and 1")
def _probabilities(facts: Facts, found: re.Match[str]) -> Explanation:
    logits, target = _both(facts)
    values = logits if found[1] == "input" else target
    spread = ""
    if values is not None and not values.is_meta and values.numel():
        spread = f" {sizes(values)} from {values.min().item():.3g} to {values.max().item():.3g}"
    return Explanation(
        f"{_name(facts)} got {found[1]}{spread}: it wants probabilities, between 0 and 1",
        "sigmoid before it; better, BCEWithLogitsLoss (F.binary_cross_entropy_with_logits) takes logits",
    )
