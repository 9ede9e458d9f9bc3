"""Formulas for floating-point operations: torch's own, and those of kernels that it has none for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from layerstep._torch.operators import arguments_of

__all__ = ["FORMULAS", "count"]

_aten = torch.ops.aten


def _attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape))


def _heads(query: Any, key: Any, width: int, heads: int) -> int:
    """The two products of attention, for [batch, tokens, width]."""
    batch, tokens = query.shape[0], query.shape[1]
    split = (batch, heads, tokens, width // heads)
    other = (batch, heads, key.shape[1], width // heads)
    return int(sdpa_flop_count(split, other, other))


def _multi_head(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, *rest: Any, **named: Any
) -> int:
    inputs = query.numel() + key.numel() + value.numel()  # each goes through a third of the weights
    projections = 2 * embed_dim * (inputs + query.numel())
    return int(projections) + _heads(query, key, embed_dim, num_head)


def _encoder_layer(src: Any, embed_dim: int, num_heads: int, *rest: Any, **named: Any) -> int:
    names = [each.name for each in arguments_of(_aten._transformer_encoder_layer_fwd.default)]
    given = {**dict(zip(names[3:], rest, strict=False)), **named}
    tokens = src.numel() // embed_dim
    hidden = given["ffn_weight_1"].shape[0]
    linear = 2 * tokens * embed_dim * (3 * embed_dim + embed_dim + 2 * hidden)
    return int(linear) + _heads(src, src, embed_dim, num_heads)


def _recurrent(input: Any, weight0: Any, weight1: Any, *rest: Any, **named: Any) -> int:
    tokens = input.numel() // input.shape[-1]
    return 2 * int(tokens) * int(weight0.numel() + weight1.numel())


def _recurrent_backward(*args: Any, **named: Any) -> int:
    return 2 * _recurrent(*args, **named)


def _of_vectors(one: Any, other: Any, *rest: Any, **named: Any) -> int:
    return 2 * int(one.numel())


def _added(start: Any, one: Any, other: Any, *rest: Any, **named: Any) -> int:
    return 2 * int(one.numel())


def _product(one: Any, other: Any, *rest: Any, **named: Any) -> int:
    return 2 * int(one.numel()) * int(other.shape[-1])


def _added_product(start: Any, one: Any, other: Any, *rest: Any, **named: Any) -> int:
    return _product(one, other)


_BY_NAME: dict[str, Callable[..., int]] = {
    "mm": _product,  # torch has these four too, but its own need 50 µs each to read their arguments
    "bmm": _product,
    "addmm": _added_product,
    "baddbmm": _added_product,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_scaled_dot_product_attention_math_for_mps": _attention,
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
    "mv": _of_vectors,
    "dot": _of_vectors,
    "vdot": _of_vectors,
    "addmv": _added,
}

FORMULAS: dict[Any, Callable[..., int]] = {
    getattr(_aten, name): formula for name, formula in _BY_NAME.items() if hasattr(_aten, name)
}
"""The formula of each operation, called with the arguments of its kernel."""


def count(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    """The operations of one call of a kernel; None if no formula applies."""
    theirs, ours = flop_registry.get(packet), FORMULAS.get(packet)
    if theirs is None and ours is None:
        return None
    try:
        return ours(*args, **kwargs) if ours else int(theirs(*args, **kwargs, out_val=result))  # type: ignore[misc]
    except Exception:  # nested tensors have no shape
        return None
