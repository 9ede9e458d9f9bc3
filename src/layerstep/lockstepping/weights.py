"""The weights of corresponding layers, compared before anything runs: one wrong value is reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerstep.lockstepping.matching import CallMap, Pair
from layerstep.lockstepping.rounding import eps_of
from layerstep.lockstepping.trace import Call
from layerstep.lockstepping.values import sketch_of
from layerstep.tensors.compare import compare
from layerstep.tensors.observing import observing

__all__ = ["WeightDifference", "compare_weights", "differences_of"]


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """A weight that is not the same on both sides."""

    a: str
    """Its name on the first side; "" if only the second has it."""
    b: str
    words: str
    differing: int = 0
    count: int = 0

    def __str__(self) -> str:
        if not self.a or not self.b:
            return f"{self.a or self.b} has no counterpart"
        names = self.a if self.a == self.b else f"{self.a} | {self.b}"
        how_many = "one value" if self.differing == 1 else f"{self.differing:,} values"
        if not self.count:
            return f"{names}: {self.words}"
        verb = "differs" if self.differing == 1 else "differ"
        return f"{how_many} of {self.count:,} {verb} in {names}: {self.words}"


def compare_weights(mapping: CallMap) -> tuple[WeightDifference, ...]:
    """What differs between the weights of corresponding layers, in the order of the first run."""
    found: dict[tuple[str, str], WeightDifference] = {}
    with observing():
        for pair in mapping.pairs:
            if not pair.is_sure and pair.a[0].kind != pair.b[0].kind:
                continue
            if pair.is_piece or pair.is_split or pair.is_leaf or (pair.a[0].weights and pair.b[0].weights):
                for each in _of_pair(pair):
                    found.setdefault((each.a, each.b), each)
    return tuple(found.values())


def differences_of(pair: Pair, among: Sequence[WeightDifference]) -> list[WeightDifference]:
    """Those of them that belong to a pair."""
    tops = (*pair.a, *pair.b)
    calls = [each for top in tops for each in (top.within() if pair.is_piece else (top,))]
    names = {name for call in calls for name in _names(call)}
    return [each for each in among if each.a in names or each.b in names]


def _names(call: Call) -> Iterator[str]:
    for name in (*call.weights, *call.buffers):
        yield f"{call.path}.{name}" if call.path else name


def _of_pair(pair: Pair) -> Iterator[WeightDifference]:
    mine, theirs = (
        {
            name: each
            for top in side
            for call in (top.within() if pair.is_piece else (top,))
            for name, each in zip(_names(call), call.weights.values(), strict=False)
        }
        for side in (pair.a, pair.b)
    )
    if pair.is_piece:
        yield from _of_piece(mine, theirs)
        return
    if pair.is_split:
        yield from _of_split(mine, theirs)
        return
    same_make = pair.a[0].kind == pair.b[0].kind
    if pair.is_leaf:
        yield from _of_buffers(pair.a[0], pair.b[0])
    for left, right in _paired(mine, theirs):
        if left is None or right is None:
            yield WeightDifference(left or "", right or "", "")
        elif (found := _difference(left, right, mine[left], theirs[right], same_make=same_make)) is not None:
            yield found


def _of_piece(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[WeightDifference]:
    """All weights of a module with parts against those of one without: by contents alone.

    What one side holds as a parameter may be a buffer or a number in the other. So a weight counts if most of
    its values are those of a weight of the other side.
    """
    for left, tensor in mine.items():
        sized = {
            name: each for name, each in theirs.items() if each.shape in (tensor.shape, tensor.shape[::-1])
        }
        found = [_difference(left, name, tensor, each, same_make=False) for name, each in sized.items()]
        apart = [each for each in found if each is not None]
        if found and len(apart) == len(found):
            best = min(apart, key=lambda each: each.differing)
            if 2 * best.differing < best.count:
                yield best


def _of_buffers(one: Call, other: Call) -> Iterator[WeightDifference]:
    """Buffers of the same name: a running mean is read as a weight is."""
    for name, mine in one.buffers.items():
        theirs = other.buffers.get(name)
        if theirs is not None and theirs.shape == mine.shape:
            left, right = (f"{call.path}.{name}" if call.path else name for call in (one, other))
            found = _difference(left, right, mine, theirs, same_make=True)
            if found is not None:
                yield found


def _paired(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[tuple[str | None, str | None]]:
    """By the last word of the name where both have it, else by size and contents."""
    left, spare = dict(mine), dict(theirs)
    for name in mine:
        other = next((each for each in spare if _last(each) == _last(name)), None)
        if other is not None and spare[other].numel() == mine[name].numel():
            del left[name], spare[other]
            yield name, other
    for name, tensor in left.items():
        sized = [each for each in spare if spare[each].numel() == tensor.numel()]
        best = min(sized, key=lambda each: _unlike(tensor, spare[each]), default=None)
        if best is not None:
            del spare[best]
        yield name, best
    for name in spare:
        yield None, name


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _unlike(one: Tensor, other: Tensor) -> float:
    a, b = sketch_of(one), sketch_of(other)
    return abs(a.squares - b.squares) + abs(a.total - b.total)


def _difference(
    left: str, right: str, one: Tensor, other: Tensor, *, same_make: bool
) -> WeightDifference | None:
    """None where they are the same up to the rounding of the coarser dtype, or its transpose."""
    candidates = [other]
    if other.dim() == 2 and one.dim() == 2 and not (same_make and one.shape == other.shape):
        candidates = [each for each in (other, other.T) if each.shape == one.shape]
    if not candidates or candidates[0].shape != one.shape:
        candidates = [other.reshape(one.shape)] if other.numel() == one.numel() else []
    if not candidates:
        return WeightDifference(left, right, compare(one, other).words)
    counts = [_count_apart(one, each) for each in candidates]
    best = counts.index(min(counts))
    if not counts[best]:
        return None
    return WeightDifference(left, right, compare(one, candidates[best]).words, counts[best], one.numel())


def _count_apart(one: Tensor, other: Tensor) -> int:
    eps = eps_of(one.dtype, other.dtype)
    x, y = (each.detach().to("cpu", torch.float64) for each in (one, other))
    least = max(
        (torch.finfo(d).smallest_normal for d in (one.dtype, other.dtype) if d.is_floating_point), default=0
    )
    allowed = eps * torch.maximum(x.abs(), y.abs()).clamp_min(least) if one.dtype != other.dtype else 0.0
    same = (x == y) | ((x - y).abs() <= allowed) | ((x != x) & (y != y))
    return int((~same).sum())


def _of_split(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[WeightDifference]:
    """A merged weight against its parts, as slices of the rows, or of the columns if it is transposed."""
    merged, parts = (mine, theirs) if len(mine) < len(theirs) else (theirs, mine)
    for name, whole in merged.items():
        pieces = {each: part for each, part in parts.items() if _last(each) == _last(name)}
        sizes = [part.shape[0] for part in pieces.values()]
        axis = next((at for at in range(whole.dim()) if whole.shape[at] == sum(sizes)), None)
        if axis is None or not pieces:
            continue
        slices = whole.split(sizes, dim=axis)
        turned = [each.T if each.dim() == 2 and axis == 1 else each for each in slices]
        if any(x.shape != y.shape for x, y in zip(turned, pieces.values(), strict=True)):
            continue
        apart = [_count_apart(x, y) for x, y in zip(turned, pieces.values(), strict=True)]
        if all(apart):
            continue  # merged in another order: by heads, say
        for (part, tensor), piece, count in zip(pieces.items(), turned, apart, strict=True):
            if count:
                names = (name, part) if merged is mine else (part, name)
                words = compare(*((piece, tensor) if merged is mine else (tensor, piece))).words
                yield WeightDifference(*names, words, count, tensor.numel())
