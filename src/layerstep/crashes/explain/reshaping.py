"""Shapes that cannot be taken: view, reshape, dimensions out of range, unpacking, one truth of many."""

from __future__ import annotations

import ast
import math
import re

from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, sizes

__all__: list[str] = []


def _receiver(facts: Facts) -> Tensor | None:
    """The tensor that a method was called on, or the only one that a function was given."""
    first = facts.operands[0].value if facts.operands else None
    if is_tensor(first):
        return first
    found = facts.tensors
    return found[0].value if found else facts.input if facts.is_layer else None


def _named(facts: Facts) -> str:
    return facts.operands[0].name if facts.operands else "it"


@says(r"shape '(\[.*?\])' is invalid for input of size (\d+)")
def _view(facts: Facts, found: re.Match[str]) -> Explanation:
    asked, count = [int(size) for size in re.findall(r"-?\d+", found[1])], int(found[2])
    given = _receiver(facts)
    op = facts.op.rpartition(".")[2] or "view"
    there = f"{sizes(given)} is {count} values" if given is not None else f"there are {count} values"
    known = math.prod(size for size in asked if size >= 0)
    needs = f"a multiple of {known}" if -1 in asked else str(known)
    return Explanation(f"{facts.subject}: {there}, {asked} needs {needs}", _fitting(op, asked, count))


def _fitting(op: str, asked: list[int], count: int) -> str:
    """The same shape with one size changed so that it fits, from the last on."""
    for place in reversed(range(len(asked))):
        rest = [size for i, size in enumerate(asked) if i != place]
        known = math.prod(rest)
        if -1 not in rest and known > 0 and count % known == 0:
            numbers = ", ".join(str(count // known if i == place else size) for i, size in enumerate(asked))
            free = ", ".join("-1" if i == place else str(size) for i, size in enumerate(asked))
            return f"{op}({numbers}), or {op}({free}), would fit"
    if -1 in asked:
        known = math.prod(size for size in asked if size > 0)
        return f"{count} is no multiple of {known}: the size before it is not what the code expects"
    return "no single size of these makes it fit: look at who made the input"


@says(r"view size is not compatible with input tensor's size and stride")
def _strides(facts: Facts, found: re.Match[str]) -> Explanation:
    given, name = _receiver(facts), _named(facts)
    what = (
        f"{name} is {sizes(given)} with strides {tuple(given.stride())}, "
        if given is not None
        else f"{name} is "
    )
    rest = facts.text.rpartition(".view")[2] or "(…)"
    return Explanation(
        f"{facts.subject}: {what}not contiguous: its values do not lie in this order",
        f"reshape{rest} instead of view{rest}, or .contiguous() before it",
    )


@says(r"Dimension out of range \(expected to be in range of \[(-?\d+), (-?\d+)\], but got (-?\d+)\)")
def _dimension(facts: Facts, found: re.Match[str]) -> Explanation:
    low, high, got = map(int, found.groups())
    given = _receiver(facts)
    shape = sizes(given) if given is not None else f"a tensor of {high + 1} dimensions"
    return Explanation(
        f"{facts.subject}: there is no dimension {got} in {shape}: its dimensions are {low} to {high}",
        f"dim=-1 is the last one, whatever their number; or a dimension is missing in {shape}",
    )


@says(r"input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)")
def _permute(facts: Facts, found: re.Match[str]) -> Explanation:
    given = _receiver(facts)
    shape = sizes(given) if given is not None else "the tensor"
    return Explanation(
        f"{facts.subject}: {found[2]} dimensions are named, {shape} has {found[1]}",
        "name each dimension once, or transpose(a, b) for two of them",
    )


@says(r"(not enough|too many) values to unpack \(expected (\d+)(?:, got (\d+))?\)")
def _unpack(facts: Facts, found: re.Match[str]) -> Explanation:
    source = facts.line.partition("=")[2].strip() or facts.line
    names, got = found[2], found[3]
    given = f"; {sizes(facts.input)} went in" if facts.input is not None else ""
    count = f"gives {got}" if got else f"gives more than {names}"
    return Explanation(
        f"{found[0].partition(' (')[0]}: {source} {count}, {names} names stand on the left{given}",
        "as many names as it gives, or `a, *rest = …`" + _hint(source),
    )


def _hint(source: str) -> str:
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError:
        return ""
    is_split = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split"
    )
    return "; split(SIZE) gives pieces of SIZE, chunk(N) gives N pieces" if is_split else ""


@says(r"Boolean value of Tensor with (?:more than one|no) value")
def _truth(facts: Facts, found: re.Match[str]) -> Explanation:
    given = _receiver(facts)
    count = f"{given.numel()} values, {sizes(given)}," if given is not None else "several values"
    place = facts.text or facts.line
    return Explanation(
        (f"{place}: " if place else "") + f"a tensor of {count} is neither true nor false",
        "ask for its .all() or .any(), or use torch.where",
    )


@says(
    r"a Tensor with (\d+) elements? cannot be converted to Scalar",
    r"only one element tensors can be converted",
)
def _item(facts: Facts, found: re.Match[str]) -> Explanation:
    given = _receiver(facts)
    count = found[1] if found.re.groups else str(given.numel()) if given is not None else "several"
    shape = f" ({sizes(given)})" if given is not None else f" ([{count}] or the like)"
    return Explanation(
        f"{facts.subject}: a tensor of {count} values{shape} is not one number",
        ".tolist() for all of them, .mean().item() for one; is a reduction missing?",
    )
