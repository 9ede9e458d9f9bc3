"""What the heads of an attention look at: spread, mass on positions, similarity, and oddities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerstep._torch import below_everything
from layerstep.tensors.format import listed
from layerstep.tensors.kinds import readable
from layerstep.tensors.shapes import tensors_in

__all__ = ["Head", "Pattern", "difference", "findings", "look_at_heads"]

SINK, UNIFORM, TWIN, LEAK = 0.8, 0.99, 0.999, 0.01
"""Limits above which a head is named: mass on the first token, spread, cosine, mass on padding."""
MOST_COMPARED = 256
"""The most heads whose similarity is computed, which needs a table of all pairs."""


@dataclass(frozen=True, slots=True)
class Head:
    """One head, over the queries that have a choice of at least two keys; None where it has no meaning."""

    index: int
    entropy: float | None
    """In nats, the mean over the queries."""
    spread: float | None
    """The entropy as a share of the greatest possible: log(keys allowed)."""
    first: float | None
    own: float | None
    previous: float | None
    future: float | None
    padding: float | None
    nearest: int | None
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Pattern:
    """All heads, the mask, and the rows that are not a distribution."""

    heads: tuple[Head, ...]
    offset: int | None
    """The position of the first query among the keys; None: queries and keys are different sequences."""
    is_causal: bool
    window: int | None
    """The most keys that a query sees, where a mask lets it see only its last ones."""
    open_future: float
    """The share of the pairs of a query and a later key that the mask allows."""
    rows: int
    unsummed: int
    blind: int
    """Queries that may look at nothing."""
    nan: int


def look_at_heads(
    weights: Tensor, allowed: Tensor, *, offset: int | None, padding: Tensor | None = None
) -> Pattern:
    """Measure [batch, heads, queries, keys]; `padding` is [batch, keys], `offset` as in `Pattern`."""
    nearest = _nearest(weights)
    sums = weights.sum(-1, dtype=torch.float64)
    choices = allowed.sum(-1)
    mask = _Mask(allowed, offset)
    heads = tuple(
        _head(index, weights[:, index], choices[:, index], padding, offset, nearest.get(index))
        for index in range(weights.shape[1])
    )
    off = (sums - 1).abs() > 1e-2 if weights.dtype.itemsize < 4 else (sums - 1).abs() > 1e-3
    return Pattern(
        heads,
        offset,
        mask.is_causal,
        mask.window,
        mask.open_future,
        sums.numel(),
        int((off & (choices > 0)).sum()),
        int((choices == 0).sum()),
        int(sums.isnan().sum()),
    )


class _Mask:
    """The shape of a mask, from the pairs that it allows."""

    def __init__(self, allowed: Tensor, offset: int | None) -> None:
        self.is_causal, self.window, self.open_future = False, None, 0.0
        queries, keys = allowed.shape[-2:]
        if offset is None or keys < 2:
            return
        ever = allowed.flatten(0, -3).any(0)
        distance = _distances(queries, keys, offset, allowed.device)
        later = distance < 0
        if later.any():
            open_pairs = allowed[..., later]
            self.open_future = float(open_pairs.float().mean()) if open_pairs.numel() else 0.0
        self.is_causal = not bool((ever & later).any()) and (bool(later.any()) or queries == 1)
        reach = int(distance[ever].max()) + 1 if ever.any() else 0
        furthest = int(distance.max()) + 1
        self.window = reach if self.is_causal and 0 < reach < furthest and queries > 1 else None


def _distances(queries: int, keys: int, offset: int, device: torch.device) -> Tensor:
    """How far each key is before its query; negative if after it."""
    own = torch.arange(offset, offset + queries, device=device)
    return own[:, None] - torch.arange(keys, device=device)[None, :]


def _head(
    index: int,
    weights: Tensor,
    choices: Tensor,
    padding: Tensor | None,
    offset: int | None,
    nearest: tuple[int, float] | None,
) -> Head:
    weights = weights.to(torch.float64)
    counted = (choices >= 2) & weights.sum(-1).isfinite()
    queries, keys = weights.shape[-2:]
    if padding is not None and offset is not None and offset + queries <= keys:
        counted &= ~padding[:, offset : offset + queries]

    def mean(rows: Tensor) -> float | None:
        chosen = rows[counted]
        return float(chosen.mean()) if chosen.numel() else None

    entropy = -torch.xlogy(weights, weights).sum(-1)
    spread = entropy / choices.clamp_min(2).to(torch.float64).log()
    own = previous = future = None
    if offset is not None:
        own, previous = (mean(_mass_at(weights, offset - back)) for back in (0, 1))
        future = mean(weights.triu(offset + 1).sum(-1))
    padded = mean((weights * padding[:, None, :]).sum(-1)) if padding is not None else None
    like, cosine = nearest if nearest is not None else (None, None)
    first = mean(weights[..., 0])
    return Head(index, mean(entropy), mean(spread), first, own, previous, future, padded, like, cosine)


def _mass_at(weights: Tensor, start: int) -> Tensor:
    """The weight of each query for the key at `start`, one key further for each query."""
    queries, keys = weights.shape[-2:]
    index = torch.arange(start, start + queries, device=weights.device)
    there = weights.gather(-1, index.clamp(0, keys - 1).expand(len(weights), -1)[..., None])[..., 0]
    return there * ((index >= 0) & (index < keys))


def _nearest(weights: Tensor) -> dict[int, tuple[int, float]]:
    """For each head the other one whose weights have the greatest cosine with it."""
    heads = weights.shape[1]
    if not 2 <= heads <= MOST_COMPARED:
        return {}
    gram = torch.zeros(heads, heads, dtype=torch.float64, device=weights.device)
    for one in weights:
        flat = one.reshape(heads, -1).float().nan_to_num(0.0)
        gram += flat @ flat.T
    norms = gram.diagonal().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    cosines = (gram / norms / norms[:, None]).fill_diagonal_(-1.0)
    best = cosines.max(-1)
    return dict(enumerate(zip(best.indices.tolist(), best.values.clamp_max(1.0).tolist(), strict=True)))


def findings(pattern: Pattern, *, means_causal: bool) -> list[str]:
    """What is odd, in words. `means_causal`: the module says that it does not look ahead."""
    heads = pattern.heads
    named = [
        (_over(heads, "first", SINK), "on the first token, a sink"),
        (_over(heads, "spread", UNIFORM), "near uniform"),
        (_over(heads, "padding", LEAK), "on padding"),
    ]
    found = [f"{_names(which)}: {what}" for which, what in named if which]
    found += _about_future(pattern, means_causal)
    twins = [f"{h.index} and {h.nearest}" for h in heads if _is_twin(h)]
    if twins:
        found.append(f"almost the same heads: {listed(twins)}")
    counts = [
        (pattern.unsummed, "do not sum to 1"),
        (pattern.blind, "may look at nothing"),
        (pattern.nan, "are NaN"),
    ]
    found += [f"{count:,} of {pattern.rows:,} rows {what}" for count, what in counts if count]
    return found


def _about_future(pattern: Pattern, means_causal: bool) -> Iterator[str]:
    masses = [head.future for head in pattern.heads if head.future]
    if not masses or pattern.is_causal:
        return
    if pattern.open_future < 0.5:
        yield f"a causal mask with holes: up to {max(masses):.1%} of a head's mass is in the future"
    elif means_causal:
        yield f"it is called causal, yet up to {max(masses):.1%} of a head's mass is in the future"


def _over(heads: Sequence[Head], name: str, least: float) -> list[int]:
    values = [(head.index, getattr(head, name)) for head in heads]
    return [index for index, value in values if value is not None and value > least]


def _is_twin(head: Head) -> bool:
    alike = head.cosine is not None and head.cosine > TWIN and (head.spread or 0.0) <= UNIFORM
    return alike and (head.nearest or 0) > head.index


def _names(indices: list[int]) -> str:
    return f"head{'s' if len(indices) > 1 else ''} {listed(list(map(str, indices)))}"


def difference(ours: object, theirs: object) -> float | None:
    """The largest difference between the tensors of two outputs, relative; None: there is none to compare."""
    worst = None
    with below_everything():
        for a, b in _readable_pairs(ours, theirs):
            odd = a.isfinite() != b.isfinite()
            gap = (a - b).abs().nan_to_num(0.0, posinf=0.0)
            scale = b.abs().nan_to_num(0.0, posinf=0.0).max().clamp_min(1e-30)
            worst = max(worst or 0.0, math.inf if odd.any() else float(gap.max() / scale))
    return worst


def _readable_pairs(ours: object, theirs: object) -> Iterator[tuple[Tensor, Tensor]]:
    """The floats of two outputs that can be read and have one shape, as float64."""
    for (_, one), (_, other) in zip(tensors_in(ours), tensors_in(theirs), strict=False):
        for a, b in zip(readable(one)[0], readable(other)[0], strict=False):
            if a.shape == b.shape and a.is_floating_point() and a.numel():
                yield a.detach().double(), b.detach().double()
