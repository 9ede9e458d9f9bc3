"""Reads the call that raised out of the source: the operation, and its operands as far as they can be had.

Nothing is run again but what only looks: names, attributes, indices, arithmetic of numbers, views of tensors.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.traceback_calls import Spot

__all__ = ["UNKNOWN", "Operand", "read_call", "value_of"]

UNKNOWN = object()
"""The value of what could only be had by running it again."""
_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
}
_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LOOKS = frozenset(
    [
        *("size", "dim", "numel", "item", "keys", "values", "detach"),
        *("t", "transpose", "permute", "swapaxes", "movedim", "unsqueeze", "squeeze", "diagonal"),
        *("view", "view_as", "expand", "expand_as", "flatten", "unflatten"),
        *("chunk", "split", "unbind", "narrow", "select"),
    ]
)
"""Methods of tensors that compute nothing."""


class Operand(NamedTuple):
    """What an operation was given: the text in the source, and its value."""

    name: str
    value: Any


def read_call(spot: Spot) -> tuple[str, tuple[Operand, ...]]:
    """The operation that raised at this place, and its operands."""
    node = _parsed(spot.text)
    if node is None:
        return "", ()
    names = _names(spot)
    if isinstance(node, ast.AugAssign):
        node = ast.BinOp(node.target, node.op, node.value)
    if isinstance(node, ast.BinOp):
        return _SYMBOLS.get(type(node.op), "?"), tuple(_operands([node.left, node.right], names))
    if isinstance(node, ast.Compare):
        return "compare", tuple(_operands([node.left, *node.comparators], names))
    if isinstance(node, ast.Subscript):
        index = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        return "[]", tuple(_operands([node.value, *index], names))
    if isinstance(node, ast.Call):
        return _read_function(node, names)
    return "", tuple(_operands([node], names)) if isinstance(node, ast.Name | ast.Attribute) else ()


def _read_function(node: ast.Call, names: Mapping[str, Any]) -> tuple[str, tuple[Operand, ...]]:
    given: list[ast.AST] = [*node.args, *(word.value for word in node.keywords)]
    if isinstance(node.func, ast.Attribute):
        owner = value_of(node.func.value, names)
        if owner is UNKNOWN or is_tensor(owner):
            return node.func.attr, tuple(_operands([node.func.value, *given], names))
        return ast.unparse(node.func), tuple(_operands(given, names))
    return ast.unparse(node.func), tuple(_operands(given, names))


def _parsed(text: str) -> Any:
    """The expression or the statement in a text that was cut out of its line."""
    for source in (text, f"({text})"):
        try:
            body = ast.parse(source.strip()).body
        except (SyntaxError, ValueError, RecursionError):
            continue
        if body:
            first = body[0]
            return first.value if isinstance(first, ast.Expr | ast.Return | ast.Assign) else first
    return None


def _names(spot: Spot) -> Mapping[str, Any]:
    frame = spot.frame
    return {**vars(builtins), **frame.f_globals, **frame.f_locals}


def _operands(nodes: list[Any], names: Mapping[str, Any]) -> Iterator[Operand]:
    for node in nodes:
        if isinstance(node, ast.Starred):
            values = value_of(node.value, names)
            text = ast.unparse(node.value)
            if isinstance(values, tuple | list):
                yield from (Operand(f"{text}[{i}]", value) for i, value in enumerate(values))
        else:
            yield Operand(ast.unparse(node), value_of(node, names))


def value_of(node: Any, names: Mapping[str, Any]) -> Any:
    """The value of an expression that only looks; UNKNOWN for any other."""
    try:
        return _value(node, names)
    except Exception:  # an attribute that raises, a view that does not fit: then it is not known
        return UNKNOWN


class _Unknown(Exception):
    """It could only be had by running it again."""


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Attribute(value=owner, attr=name):
            return getattr(_value(owner, names), name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.Subscript(value=owner, slice=index):
            return _value(owner, names)[_index(index, names)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _number(_value(operand, names)) * -1
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _NUMBERS:
            return _NUMBERS[type(sign)](_number(_value(left, names)), _number(_value(right, names)))
        case ast.Call():
            return _look(node, names)
    raise _Unknown


def _index(node: Any, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _value(part, names) for part in (lower, upper, step)))
        case ast.Tuple(elts=items):
            return tuple(_index(item, names) for item in items)
    return _value(node, names)


def _number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise _Unknown


def _look(node: ast.Call, names: Mapping[str, Any]) -> Any:
    given = [_value(argument, names) for argument in node.args]
    named = {str(word.arg): _value(word.value, names) for word in node.keywords}
    if isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKS:
        owner = _value(node.func.value, names)
        if isinstance(owner, Tensor | dict):
            return getattr(owner, node.func.attr)(*given, **named)
    function = _value(node.func, names) if isinstance(node.func, ast.Name) else None
    if function in (len, int, list, tuple, range) or function is torch.Size:
        return function(*given)
    raise _Unknown
