"""Calls in a condition that only compute: they draw nothing, write nothing and call no module.

A condition that makes no other calls needs no guard around it. The guard takes 100 µs, and a condition on
every module is asked at every call.
"""

from __future__ import annotations

import ast
from typing import Any

import torch

__all__ = ["is_plain", "only_computes"]

_METHODS = """
    abs all allclose amax amin aminmax any argmax argmin bfloat16 bool ceil clamp count_nonzero cpu cumsum
    detach diagonal diff dim dist dot double element_size eq equal exp expm1 flatten float floor ge gt half
    histc int is_complex is_contiguous is_floating_point isclose isfinite isinf isnan isneginf isposinf item
    kthvalue le log log10 log1p log2 logsumexp long lt max mean median min mode mul nanmean nanmedian
    nanquantile nansum ndimension ne neg nelement nonzero norm numel permute pow prod quantile ravel
    reciprocal relu reshape round sigmoid sign signbit size softmax sort sqrt square squeeze std stride sub
    sum t tanh tolist topk trace transpose trunc unique unsqueeze var view
"""
_METHODS_OF_OTHERS = "endswith get items keys startswith values"
"""Of strings, and of the containers that tensors come in."""
_ATTRIBUTES = """
    H T device dtype imag indices is_leaf itemsize mH mT nbytes ndim real requires_grad shape values
"""
_OF_A_VALUE = frozenset(f"{_METHODS} {_METHODS_OF_OTHERS} {_ATTRIBUTES}".split())

_FUNCTIONS = """
    abs all allclose amax amin any argmax argmin clamp count_nonzero cosine_similarity dist dot equal exp
    flatten isclose isfinite isinf isnan isneginf isposinf log log10 log2 logsumexp max mean median min nansum
    norm numel quantile relu sigmoid softmax sqrt square std sum tanh topk trace var
"""
_OF_TORCH = frozenset(_FUNCTIONS.split())

_KEYWORDS = """
    atol axis correction descending dim dtype equal_nan keepdim max min ord other p q rtol unbiased
"""
_BY_NAME = frozenset(_KEYWORDS.split())
"""Not `out`, which is written to, nor `generator`."""

_PLAIN_NODES = (
    ast.Expression,
    ast.expr_context,
    ast.Constant,
    ast.BoolOp,
    ast.boolop,
    ast.BinOp,
    ast.operator,
    ast.UnaryOp,
    ast.unaryop,
    ast.Compare,
    ast.cmpop,
    ast.IfExp,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.keyword,
)
_VALUES = frozenset({"inp", "out", "kwargs", "name", "forward", "step"})


def only_computes(tree: ast.expr | ast.Expression) -> bool:
    """Does an expression do no more than compute, if what it reads is plain?"""
    return all(_computes(node) for node in ast.walk(tree))


def _computes(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _VALUES or node.id == "torch"
    if isinstance(node, ast.Attribute):
        if _is_torch(node.value):
            return node.attr in _OF_TORCH or isinstance(getattr(torch, node.attr, None), float | torch.dtype)
        return node.attr in _OF_A_VALUE
    if isinstance(node, ast.Call):
        by_name = all(keyword.arg in _BY_NAME for keyword in node.keywords)
        return by_name and isinstance(node.func, ast.Attribute)
    return isinstance(node, _PLAIN_NODES)


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"


_TENSORS = (torch.Tensor, torch.nn.Parameter)
_LEAVES = frozenset({*_TENSORS, int, float, bool, str, type(None)})
MOST_ITEMS = 8


def is_plain(value: Any) -> bool:
    """Is it a tensor of torch's own class, or a small container of some? Then no code of others runs."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is tuple or kind is list:
        return len(value) <= MOST_ITEMS and all(type(item) in _LEAVES for item in value)
    return kind is dict and len(value) <= MOST_ITEMS and all(type(item) in _LEAVES for item in value.values())
