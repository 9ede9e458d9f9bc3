"""Attention and recurrent layers: widths, heads, masks, hidden states."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, sizes

__all__: list[str] = []


def _layout(module: Any) -> str:
    first = getattr(module, "batch_first", False)
    return "[batch, length, features]" if first else "[length, batch, features], for batch_first is off"


@says(r"was expecting embedding dimension of (\d+), but got (\d+)")
def _width(facts: Facts, found: re.Match[str]) -> Explanation:
    wanted, got = found.groups()
    name = facts.subject if facts.is_layer else "multi_head_attention_forward"
    given = f" query {sizes(facts.input)}" if facts.input is not None else ""
    return Explanation(
        f"{name} got{given}: last dimension is {got}, it is made for {wanted}",
        f"embed_dim={got}, or a Linear({got}, {wanted}) before it",
    )


@says(
    r"embed_dim must be divisible by num_heads",
    r"must be divisible by num_(?:attention_)?heads",
    r"not divisible by num_heads",
)
def _heads(facts: Facts, found: re.Match[str]) -> Explanation:
    width, heads = facts.inner.get("embed_dim"), facts.inner.get("num_heads")
    if not isinstance(width, int) or not isinstance(heads, int):
        return Explanation(
            facts.message.partition("\n")[0], "a width that is a multiple of the number of heads"
        )
    near = [count for count in range(1, width + 1) if width % count == 0]
    fits = sorted(near, key=lambda count: abs(count - heads))[:2]
    return Explanation(
        f"MultiheadAttention(embed_dim={width}, num_heads={heads}): {width} is not divisible by {heads}",
        f"num_heads={' or '.join(map(str, sorted(fits)))}, or embed_dim={width - width % heads + heads}",
    )


@says(r"The shape of the (\d)D attn_mask is torch\.Size\((\[.*?\])\), but should be \(([\d, ]+)\)")
def _mask(facts: Facts, found: re.Match[str]) -> Explanation:
    _, got, wanted = found.groups()
    given = f" query {sizes(facts.input)}," if facts.input is not None else ""
    return Explanation(
        f"{facts.subject} got{given} attn_mask {got}: the mask must be [{wanted}], query length by key "
        f"length",
        f"inputs are {_layout(facts.module)}; cut the mask to the lengths of this batch",
    )


@says(r"Expected key_padded_mask\.shape\[(\d)\] to be (\d+), but got (\d+)", r"key_padding_mask must be")
def _padding(facts: Facts, found: re.Match[str]) -> Explanation | None:
    mask, key = facts.argument("key_padding_mask"), facts.argument("key")
    if not is_tensor(mask) or not is_tensor(key):
        return None
    first = getattr(facts.module, "batch_first", False)
    wanted = list(key.shape[:2]) if first else [key.shape[1], key.shape[0]]
    fix = f"it is [batch, key length]; inputs are {_layout(facts.module)}"
    if list(mask.shape) == wanted[::-1]:
        fix = f"transpose the mask, or the inputs: they are {_layout(facts.module)}"
    return Explanation(
        f"{facts.subject} got key {sizes(key)}, key_padding_mask {sizes(mask)}: it must be {wanted}", fix
    )


@says(
    r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)",
    r"input has inconsistent input_size: got (\d+),? expected (\d+)",
)
def _recurrent(facts: Facts, found: re.Match[str]) -> Explanation:
    wanted, got = found.groups() if "must be equal" in found[0] else reversed(found.groups())
    fix = f"input_size={got}; inputs are {_layout(facts.module)}"
    given = facts.input
    if given is not None and int(wanted) in given.shape[:-1]:
        fix = f"dimension {list(given.shape).index(int(wanted))} is {wanted}: transpose it to the end"
    return Explanation(
        f"{facts.subject} got {sizes(given)}: last dimension is {got}, input_size is {wanted}", fix
    )


@says(r"Expected hidden(\[\d\])? size \(([\d, ]+)\), got \[([\d, ]+)\]")
def _hidden(facts: Facts, found: re.Match[str]) -> Explanation:
    which, wanted, got = found.groups()
    state = f"hidden state{which or ''}"
    own = [int(size) for size in wanted.split(",")]
    module: Any = facts.module
    layers = (
        module.num_layers * (2 if module.bidirectional else 1) if isinstance(module, nn.RNNBase) else own[0]
    )
    return Explanation(
        f"{facts.subject} got {sizes(facts.input)} and {state} [{got}]: the hidden state must be [{wanted}]",
        f"[layers × directions, batch, hidden] is {layers} here, then the batch of the input; is it "
        f"one of another batch?",
    )
