"""Attention as a module computes it, whatever its class, seen in a rerun.

It recognises three forms: `F.scaled_dot_product_attention`, whose weights we compute from q, k and the mask
and check against its result; `F.multi_head_attention_forward`, which we ask for its weights; and a softmax
whose result goes into a product.
"""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep._torch import call_frames, called_module
from layerstep._torch.tensors import is_tensor
from layerstep.errors import BadArguments
from layerstep.rerun.kv_caches import is_cache
from layerstep.rerun.module_call import Watcher

__all__ = ["Attention", "AttentionWatcher"]

MASKED_BELOW = -5_000.0
"""A lower score comes from a mask: -inf, the least value of a dtype, or the -10000 of old models."""
MOST_ELEMENTS = 1 << 24
"""The most weights of one rerun: as many as one head of 4,096 tokens has."""

_SDPA = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in (
            ("query", None),
            ("key", None),
            ("value", None),
            ("attn_mask", None),
            ("dropout_p", 0.0),
            ("is_causal", False),
            ("scale", None),
            ("enable_gqa", False),
        )
    ]
)
_MHA = inspect.signature(F.multi_head_attention_forward)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention: its weights [batch, heads, queries, keys], and which of them the mask allows."""

    kind: str
    """sdpa, mha or eager"""
    module: nn.Module | None
    weights: Tensor
    allowed: Tensor
    error: float | None
    """The largest difference between weights @ v and the kernel's result, relative; None: not compared."""
    batch: int | None = None
    head: int | None = None
    """The one batch element or head that was computed, where all would be too many."""
    is_cross: bool = False
    """Are the keys known to be of another sequence than the queries?"""
    is_cached: bool = False
    """Do some of the keys come from a cache?"""


class _Weighted(NamedTuple):
    """A tensor that comes from a softmax, and the scores that went into the softmax."""

    tensor: Tensor
    scores: Tensor


class AttentionWatcher(Watcher):
    """Collects the attentions of a rerun, bounded; `too_large` are the shapes of those left out."""

    def __init__(self, *, batch: int | None = None, head: int | None = None) -> None:
        super().__init__()
        self.found: list[Attention] = []
        self.too_large: list[tuple[int, ...]] = []
        self._batch = batch
        self._head = head
        self._left = MOST_ELEMENTS
        self._weighted: dict[int, _Weighted] = {}

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            return self._sdpa(func, args, kwargs)
        if func is F.multi_head_attention_forward:
            return self._mha(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name in _PRODUCTS and self._weighted:
            self._product(name, args, kwargs)
        result = super().see(func, args, kwargs)
        if is_tensor(result):
            self._follow(name, args, kwargs, result)
        return result

    def _sdpa(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _SDPA.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        self.dropped |= given["dropout_p"] > 0
        given["dropout_p"] = 0.0
        result = func(**{k: v for k, v in given.items() if k != "enable_gqa" or v})
        q, k = given["query"], given["key"]
        shape = (*q.shape[:-1], k.shape[-2])
        one: tuple[int | None, int | None] = (None, None)
        if math.prod(shape) > self._left and q.dim() == 4:
            one = (self._batch, self._head)
            shape = (1 if one[0] is not None else shape[0], 1 if one[1] is not None else shape[1], *shape[2:])
        for name, index, size in zip(("batch", "head"), one, q.shape, strict=False):
            if index is not None and index >= size:
                raise BadArguments(f"there is no {name} {index}", f"there are 0 to {size - 1}")
        if self._takes(shape):
            names = ("query", "key", "value", "attn_mask")
            query, key, value, mask = (_one_of(given[name], one, q) for name in names)
            scores = _scores(query, key, mask, is_causal=given["is_causal"], scale=given["scale"])
            weights = scores.softmax(-1).masked_fill_((scores == -math.inf).all(-1, keepdim=True), 0.0)
            error = _error(weights @ _grouped(value, weights).to(weights), _one_of(result, one, q))
            self._keep("sdpa", weights, scores, error=error, one=one)
        return result

    def _mha(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _MHA.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        self.dropped |= given["training"] and given["dropout_p"] > 0
        wants, averages = given["need_weights"], given["average_attn_weights"]
        q, k = given["query"], given["key"]
        batch = q.shape[1] if q.dim() == 3 else 1
        takes = self._takes((batch, given["num_heads"], q.shape[0], k.shape[0]))
        given.update(training=False, need_weights=wants or takes, average_attn_weights=not takes and averages)
        output, weights = func(**given)
        if takes:
            four = weights if weights.dim() == 4 else weights[None]
            self._keep("mha", four, None, is_cross=q is not k)
            weights = weights.mean(-3) if averages else weights
        return output, weights if wants else None

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """Follow the result of a softmax to its product with v."""
        first = [*args[:2], *kwargs.values()][:3]
        if name == "softmax" and args and is_tensor(args[0]) and result.dim() >= 2:
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if dim in (-1, result.dim() - 1):
                self._weighted[id(result)] = _Weighted(result, args[0])
        elif self._weighted and name not in _PRODUCTS and result.dim() >= 2:
            source = next((self._weighted[id(one)] for one in first if id(one) in self._weighted), None)
            if source is not None and result.is_floating_point():
                self._weighted[id(result)] = _Weighted(result, source.scores)

    def _product(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is this the product of weights and v? Not if v is learned: those are gates."""
        order: list[int] = []
        if name == "einsum":
            operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
            at = next((i for i, operand in enumerate(operands) if id(operand) in self._weighted), None)
            if at is None or len(operands) != 2 or not (order := _einsum_order(args[0], at)):
                return
            left, right = operands[at], operands[1 - at]
        else:
            left, right = [*args, *kwargs.values()][slice(1, 3) if name == "baddbmm" else slice(2)]
        source = self._weighted.get(id(left))
        if source is None or isinstance(right, nn.Parameter) or not self._takes(tuple(left.shape)):
            return
        scores = source.scores if source.scores.numel() == left.numel() else None
        if scores is not None:
            scores = scores.reshape(left.shape)
        if order:
            left, scores = left.permute(order), None if scores is None else scores.permute(order)
        self._keep("eager", left, scores)

    def _takes(self, shape: tuple[int, ...]) -> bool:
        size = math.prod(shape)
        if size > self._left:
            self.too_large.append(shape)
            return False
        self._left -= size
        return True

    def _keep(
        self,
        kind: str,
        weights: Tensor,
        scores: Tensor | None,
        *,
        error: float | None = None,
        one: tuple[int | None, int | None] = (None, None),
        is_cross: bool = False,
    ) -> None:
        allowed = weights != 0 if scores is None else ~(scores <= MASKED_BELOW)  # NaN is no mask
        frame = next(call_frames(sys._getframe()), None)
        module, args, kwargs = called_module(frame) if frame is not None else (None, (), {})
        is_cross = is_cross or any(kwargs.get(name) is not None for name in _OTHERS)
        is_cached = any(map(is_cache, (*args, *kwargs.values())))
        batch = _batch_of(args, weights)
        four = (_four(weights, batch), _four(allowed, batch))
        self.found.append(Attention(kind, module, *four, error, *one, is_cross, is_cached))


_OTHERS = ("encoder_hidden_states", "key_value_states")
"""The names that transformers use for the other sequence."""
_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}


def _one_of(tensor: Any, one: tuple[int | None, int | None], q: Tensor) -> Any:
    """The part of a q, k, v, mask or result for one batch element or head."""
    if tensor is None:
        return None
    for dim, index in zip((-4, -3), one, strict=True):
        if index is not None and tensor.dim() >= -dim and tensor.shape[dim] > 1:
            group = q.shape[dim] // tensor.shape[dim]
            at = index // group if dim == -3 and group else index
            tensor = tensor.narrow(dim, at, 1)
    return tensor


def _grouped(tensor: Tensor, like: Tensor) -> Tensor:
    """Repeat the heads of keys, if each serves several heads of queries."""
    if tensor.dim() < 3 or tensor.shape[-3] in (1, like.shape[-3]):
        return tensor
    return tensor.repeat_interleave(like.shape[-3] // tensor.shape[-3], -3)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float | None) -> Tensor:
    """The scores that go into the softmax, in float32 at least."""
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q.to(dtype) * scale) @ _grouped(k, q).to(dtype).mT
    if is_causal:  # from the upper left, whatever the lengths
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.to(dtype)


def _error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value, where theirs is a number."""
    theirs = theirs.to(ours.dtype)
    good = theirs.isfinite()
    if not good.any():
        return 0.0
    largest = theirs[good].abs().max().clamp_min(torch.finfo(ours.dtype).tiny)
    return float((ours - theirs)[good].abs().max() / largest)


def _einsum_order(equation: Any, at: int) -> list[int]:
    """How to turn operand `at` into […, queries, keys]: keys are summed over, queries are not in v.

    Empty if the equation is not a product of weights and v.
    """
    terms, arrow, out = str(equation).replace(" ", "").partition("->")
    mine, other = terms.split(",")[at], terms.split(",")[1 - at]
    if not arrow or "." in terms:
        return []
    keys = [letter for letter in mine if letter in other and letter not in out]
    queries = [letter for letter in mine if letter not in other]
    if len(keys) != 1 or len(queries) != 1:
        return []
    rest = [letter for letter in mine if letter not in (*keys, *queries)]
    return [mine.index(letter) for letter in (*rest, *queries, *keys)]


def _batch_of(args: tuple[Any, ...], weights: Tensor) -> int:
    """How many batch elements the module got; the second dimension, where the length comes first."""
    x = next((arg for arg in args if is_tensor(arg)), None)
    if x is None or x.dim() < 3:
        return 1
    first, second, queries = x.shape[0], x.shape[1], weights.shape[-2]
    return int(second if first == queries != second else first)


def _four(tensor: Tensor, batch: int) -> Tensor:
    """Weights as [batch, heads, queries, keys], whichever of these are flattened or missing."""
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() == 2:
        return tensor[None, None]
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor.unflatten(0, (batch, -1)) if len(tensor) % batch == 0 else tensor[None]
