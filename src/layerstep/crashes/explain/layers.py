"""Layers that got another shape than they are made for: convolution, pooling, normalisation."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, sizes

__all__: list[str] = []


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _got(facts: Facts) -> str:
    return f"{facts.subject} got {sizes(facts.input)}" if facts.input is not None else facts.subject


@says(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels instead")
def _channels(facts: Facts, found: re.Match[str]) -> Explanation:
    shape = [int(size) for size in found[1].split(",")]
    wanted, got = int(found[2]), int(found[3])
    cause = f"{_got(facts)}: {_count(got, 'channel')} in dimension 1, weight wants {wanted}"
    given = _wanted_rank(facts.module)
    unbatched = given is not None and len(shape) == given - 1
    if shape[-1] == wanted and len(shape) >= 3:
        if len(shape) == 3 and not unbatched:
            return Explanation(
                f"{cause}; dimension 2 is {wanted}", "transpose(1, 2) before it: [batch, channels, length]"
            )
        order = (
            "2, 0, 1" if unbatched else ", ".join(map(str, [0, len(shape) - 1, *range(1, len(shape) - 1)]))
        )
        return Explanation(
            f"{cause}; dimension {len(shape) - 1} is {wanted}: channels last?", f"permute({order}) before it"
        )
    if got == 1 and len(shape) == 4:
        return Explanation(cause, f"repeat(1, {wanted}, 1, 1) for grey pictures, or in_channels=1")
    return Explanation(cause, f"in_channels={got}, or look at what made the input")


def _wanted_rank(module: nn.Module | None) -> int | None:
    """How many dimensions a batch of this layer has."""
    name = type(module).__name__ if module is not None else ""
    found = re.search(r"([123])d$", name)
    return int(found[1]) + 2 if found else None


@says(r"input size per channel: \(([\d x]+)\)\. Kernel size: \(([\d x]+)\)\. Kernel size can't be greater")
def _kernel(facts: Facts, found: re.Match[str]) -> Explanation:
    size, kernel = (text.replace(" x ", "×") for text in found.groups())
    padded = "with its padding " if _pads(facts.module) else ""
    return Explanation(
        f"{_got(facts)}: kernel {kernel} is larger than the input {size} {padded}".rstrip(),
        "a smaller kernel, padding, fewer poolings before it, or larger pictures",
    )


def _pads(module: Any) -> bool:
    padding = getattr(module, "padding", 0)
    return any(padding) if isinstance(padding, tuple) else bool(padding)


@says(
    r"Expected (\d)D \(unbatched\) or (\d)D \(batched\) input to",
    r"expected (\d)D(?: or (\d)D)? input \(got (\d)D input\)",
    r"Expected (\d)D or (\d)D \(batch mode\) tensor",
)
def _rank(facts: Facts, found: re.Match[str]) -> Explanation | None:
    given = facts.input
    if given is None:
        return None
    wanted = [number for number in found.groups()[:2] if number]
    cause = f"{_got(facts)}: {_count(given.dim(), 'dimension')}, it wants {' or '.join(wanted)}"
    name = type(facts.module).__name__
    if "Norm" in name and given.dim() in (2, 3) and wanted == ["4"]:
        return Explanation(cause, f"{name.replace('2d', '1d')} is for {sizes(given)}")
    most = int(wanted[-1])
    if given.dim() < most:
        missing = most - given.dim()
        index = ", ".join(["None"] * missing)
        unsqueeze = ".unsqueeze(0)" * missing
        return Explanation(cause, f"a dimension is missing: x[{index}] or x{unsqueeze} adds it")
    return Explanation(cause, f"flatten or squeeze dimensions: {sizes(given)}")


@says(r"Output size is too small", r"Trying to create tensor with negative dimension|non-empty 3D or 4D")
def _pooled(facts: Facts, found: re.Match[str]) -> Explanation | None:
    if facts.input is None:
        return None
    return Explanation(
        f"{_got(facts)}: too small, nothing would be left of it",
        "fewer poolings and strides before it, or larger pictures",
    )


@says(
    r"running_mean should contain (\d+) elements not (\d+)", r"weight should contain (\d+) elements not (\d+)"
)
def _features(facts: Facts, found: re.Match[str]) -> Explanation:
    got, own = found.groups()
    return Explanation(
        f"{_got(facts)}: {got} channels in dimension 1, it has {own} features",
        f"num_features={got}; or is the layer before it another one than you think?",
    )


@says(r"Expected more than 1 (?:value per channel|spatial element) when training, got input size")
def _one_value(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{_got(facts)}: one value per channel in training, so there is no variance to normalise by",
        "a last batch of one sample? drop_last=True in the DataLoader; model.eval() to predict; or GroupNorm",
    )


@says(
    r"Given normalized_shape=(\[.*?\]), expected input with shape \[\*, (.*?)\], but got input of size "
    r"?(\[.*?\])"
)
def _layer_norm(facts: Facts, found: re.Match[str]) -> Explanation:
    given = facts.input
    shape = found[3]
    last = given.shape[-1] if given is not None and given.dim() else "?"
    wanted = [int(size) for size in re.findall(r"\d+", found[1])]
    what = f"last dimension is {last}, it normalises {wanted[0]}"
    if len(wanted) > 1:
        what = f"the last {len(wanted)} dimensions are not {wanted}"
    name = facts.subject if facts.is_layer else facts.op or "layer_norm"
    hint = f"nn.LayerNorm({last})" if len(wanted) == 1 else "normalized_shape as the last dimensions are"
    if given is not None and len(wanted) == 1 and wanted[0] in given.shape:
        hint = f"dimension {list(given.shape).index(wanted[0])} is {wanted[0]}: transpose it to the end"
    return Explanation(f"{name} got {shape}: {what}", hint)


@says(
    r"Expected number of channels in input to be divisible by num_groups",
    r"Expected weight to be a vector of size equal",
)
def _group_norm(facts: Facts, found: re.Match[str]) -> Explanation | None:
    given, module = facts.input, facts.module
    if not is_tensor(given) or not isinstance(module, nn.GroupNorm):
        return None
    got = given.shape[1]
    return Explanation(
        f"{_got(facts)}: {got} channels in dimension 1, it has {module.num_channels} in "
        f"{module.num_groups} groups",
        f"num_channels={got}, and num_groups a divisor of it",
    )
