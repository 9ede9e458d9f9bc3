"""The mapping of one run onto the other: leaves first, then the modules around them, then what is split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from layerstep.errors import UserError
from layerstep.lockstepping.alignment import align, words_in
from layerstep.lockstepping.pieces import pieces_of
from layerstep.lockstepping.trace import Call, Trace
from layerstep.lockstepping.values import EMPTY, Sketch, distance, main_pair, sketch_of

__all__ = ["CallMap", "Pair", "map_calls"]

LOOSE = 2e-2
"""What values may differ by and still speak for the same layer."""
EXACT = {True: 1e-5, False: 4e-3}
"""The same for weights: of float32 or wider, and of half precision."""
MOST_PARTS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A call and its counterpart; several on one side if they do in parts what the other does at once."""

    a: tuple[Call, ...]
    b: tuple[Call, ...]
    is_sure: bool = True
    """Do weights or inputs say so, and not only sizes, kinds and order?"""

    @property
    def is_split(self) -> bool:
        return len(self.a) > 1 or len(self.b) > 1

    @property
    def is_leaf(self) -> bool:
        return all(call.is_leaf for call in (*self.a, *self.b))

    @property
    def is_chain(self) -> bool:
        """Do the calls of one side run one after the other? Else they do their parts side by side."""
        whole, parts = (self.a[0], self.b) if len(self.a) == 1 else (self.b[0], self.a)
        last = parts[-1].outputs
        return self.is_split and bool(last) and last[0].numel == whole.outputs[0].numel

    @property
    def is_piece(self) -> bool:
        """Is it one module without parts here, and a module with parts, or several, there?"""
        return self.a[0].is_leaf != self.b[0].is_leaf or self.is_chain

    @property
    def has_weights(self) -> bool:
        return any(call.weights for call in (*self.a, *self.b))


@dataclass(slots=True, eq=False)
class CallMap:
    """All pairs, and what stayed alone on either side."""

    pairs: list[Pair] = field(default_factory=list)
    alone_a: list[Call] = field(default_factory=list)
    alone_b: list[Call] = field(default_factory=list)
    of_a: dict[int, Pair] = field(default_factory=dict)
    of_b: dict[int, Pair] = field(default_factory=dict)

    def add(self, pair: Pair) -> None:
        self.pairs.append(pair)
        self.of_a.update({id(call): pair for call in pair.a})
        self.of_b.update({id(call): pair for call in pair.b})

    def around(self, call: Call) -> Pair | None:
        """The innermost pair of modules around a call of the first run."""
        return next((self.of_a[id(each)] for each in call.ancestors() if id(each) in self.of_a), None)

    def around_b(self, call: Call) -> Pair | None:
        return next((self.of_b[id(each)] for each in call.ancestors() if id(each) in self.of_b), None)


def map_calls(a: Trace, b: Trace, given: Mapping[str, str] | None = None) -> CallMap:
    """Map the calls of two runs. `given` are paths that the user has mapped; they go before everything."""
    found = CallMap()
    for pair in _given_pairs(a, b, given or {}):
        found.add(pair)
    exact = EXACT[_is_wide(a) and _is_wide(b)]
    inside = _map_pieces(found, a, b, exact)
    leaves_a, leaves_b = (
        [call for call in side.calls if call.is_leaf and call.outputs and id(call) not in {*known, *inside}]
        for side, known in ((a, found.of_a), (b, found.of_b))
    )
    root = Pair((a.calls[0],), (b.calls[0],))
    is_flat = a.calls[0].is_leaf or b.calls[0].is_leaf
    aligned = align(leaves_a, leaves_b, exact=exact, loose=LOOSE) if not is_flat else []
    known = {id(call) for one, other, _ in aligned for call in (one, other)}
    leaves = []
    for one, other, has_weights in aligned:
        if one.weights and other.weights and not has_weights:
            one, other = _grown(one, known), _grown(other, known)
        leaves.append((one, other, has_weights or _same_input(one, [other])))
    for one, other, is_sure in leaves:
        if is_sure:
            found.add(Pair((one,), (other,)))
    if id(root.a[0]) not in found.of_a and id(root.b[0]) not in found.of_b:
        found.add(root)
    _map_containers(found, a, b)
    for one, other, is_sure in leaves:
        if not is_sure and _same_place(found, one, other):
            found.add(Pair((one,), (other,), is_sure=False))
    _map_containers(found, a, b, is_sure=False)
    _map_rest(found, a, b, exact)
    _map_splits(found, a, b)
    found.pairs.sort(key=lambda pair: pair.a[0].entered)
    found.alone_a = [call for call in a.calls if id(call) not in found.of_a]
    found.alone_b = [call for call in b.calls if id(call) not in found.of_b]
    return found


def _is_wide(trace: Trace) -> bool:
    floats = [each.dtype for each in trace.state.values() if each.is_floating_point()]
    return all(dtype in (torch.float32, torch.float64) for dtype in floats)


def _given_pairs(a: Trace, b: Trace, given: Mapping[str, str]) -> list[Pair]:
    pairs = []
    for left, right in given.items():
        mine, theirs = (
            [call for call in side.calls if call.path == path] for side, path in ((a, left), (b, right))
        )
        for side, path, calls in ((a, left, mine), (b, right, theirs)):
            if not calls:
                raise UserError(
                    f"{side.title} calls no {path!r}", "the map has lines `path of A = path of B`"
                )
        pairs += [Pair((one,), (other,)) for one, other in zip(mine, theirs, strict=False)]
    return pairs


def _map_pieces(found: CallMap, a: Trace, b: Trace, exact: float) -> set[int]:
    """Pair what is one piece on one side only, and return the ids of the calls that this leaves alone."""
    inside: set[int] = set()
    pairs = [
        *(Pair((piece,), parts) for piece, parts in pieces_of(a, b, exact=exact)),
        *(Pair(parts, (piece,)) for piece, parts in pieces_of(b, a, exact=exact)),
    ]
    for pair in pairs:
        if not any(id(call) in found.of_a or id(call) in found.of_b for call in (*pair.a, *pair.b)):
            found.add(pair)
            inside |= {id(each) for call in (*pair.a, *pair.b) for each in call.within()}
    return inside


def _grown(call: Call, known: set[int]) -> Call:
    """The module around a layer, if no other layer with weights in it has a counterpart.

    A layer with a low-rank update is a module with three layers: one alone is not its counterpart.
    """
    around = call.parent
    if around is None or around.parent is None:
        return call
    others = [each for each in around.within() if each.is_leaf and each.weights and each is not call]
    return around if others and not any(id(each) in known for each in others) else call


# --- modules around leaves ---


def _map_containers(found: CallMap, a: Trace, b: Trace, *, is_sure: bool = True) -> None:
    """Two containers correspond if the counterparts of all that one holds are in the other, both ways."""
    held_a, held_b = (
        {id(call): _held(call, of) for call in side.calls if not call.is_leaf}
        for side, of in ((a, found.of_a), (b, found.of_b))
    )
    by_held: dict[frozenset[int], list[Call]] = {}
    for call in b.calls:
        if held_b.get(id(call)) and id(call) not in found.of_b:
            by_held.setdefault(held_b[id(call)], []).append(call)
    chains: dict[frozenset[int], list[Call]] = {}
    for call in a.calls:
        if held_a.get(id(call)) and id(call) not in found.of_a:
            chains.setdefault(held_a[id(call)], []).append(call)
    for held, mine in chains.items():
        for one, other in _along(mine, by_held.get(held, [])):
            found.add(Pair((one,), (other,), is_sure=is_sure))


def _held(call: Call, of: dict[int, Pair]) -> frozenset[int]:
    return frozenset(id(of[id(each)]) for each in call.within() if each.is_leaf and id(each) in of)


def _along(mine: Sequence[Call], theirs: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Modules that only wrap each other hold the same: values, kinds and names tell them apart."""
    if len(mine) == len(theirs):
        return list(zip(mine, theirs, strict=True))
    pairs, start = [], 0
    for one in mine:
        best = max(theirs[start:], key=lambda other: _alike(one, other), default=None)
        if best is not None and _alike(one, best) > 0:
            pairs.append((one, best))
            start = theirs.index(best) + 1
    return pairs


def _alike(one: Call, other: Call) -> float:
    score = 0.0
    for mine, theirs in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
        pair = main_pair(mine, theirs)
        score += 0.1 * (pair is not None)
        score += pair is not None and (distance(*pair) or 0.0) < LOOSE
    return score + 0.5 * (one.kind == other.kind) + 0.1 * len(words_in(one.path) & words_in(other.path))


# --- what is still alone: one module here, a few there ---


def _map_rest(found: CallMap, a: Trace, b: Trace, exact: float) -> None:
    """Pair what holds the same weights in all, or gets and returns the same, in the same surroundings."""
    free_b = [call for call in b.calls if id(call) not in found.of_b and call.outputs]
    for one in [call for call in a.calls if id(call) not in found.of_a and call.outputs]:
        near = [other for other in free_b if id(other) not in found.of_b and _same_place(found, one, other)]
        for other in near:
            if _same_whole(one, other, exact) or (_same_values(one, other) and not _is_idle(one)):
                found.add(Pair((one,), (other,)))
                break


def _same_place(found: CallMap, one: Call, other: Call) -> bool:
    return found.around(one) is found.around_b(other)


def _whole(call: Call) -> Sketch:
    tensors = {id(each): each for part in call.within() for each in part.weights.values()}
    return sum((sketch_of(each) for each in tensors.values()), EMPTY)


def _same_whole(one: Call, other: Call, tolerance: float) -> bool:
    if one.is_leaf and other.is_leaf:
        return False
    a, b = _whole(one), _whole(other)
    return a.count == b.count > 0 and abs(a.squares - b.squares) <= 2 * tolerance * max(a.squares, b.squares)


def _same_values(one: Call, other: Call) -> bool:
    for mine, theirs in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
        pair = main_pair(mine, theirs)
        if pair is None or (distance(*pair) or 0.0) > LOOSE:
            return False
    return True


def _is_idle(call: Call) -> bool:
    """Does it return its input, as dropout does in evaluation?"""
    pair = main_pair(call.inputs, call.outputs)
    return pair is not None and pair[0].shape == pair[1].shape and distance(*pair) == 0.0


# --- split and merged layers ---


def _map_splits(found: CallMap, a: Trace, b: Trace) -> None:
    """One projection here, q, k and v there: same input, and the sizes of the results add up."""
    lone_a, lone_b = (
        [call for call in side.calls if call.is_leaf and call.weights and call.outputs and id(call) not in of]
        for side, of in ((a, found.of_a), (b, found.of_b))
    )
    for whole in lone_a:
        parts = _parts_of(
            whole, [each for each in lone_b if id(each) not in found.of_b and _same_place(found, whole, each)]
        )
        if parts:
            found.add(Pair((whole,), tuple(parts)))
    for whole in lone_b:
        if id(whole) in found.of_b:
            continue
        parts = _parts_of(
            whole, [each for each in lone_a if id(each) not in found.of_a and _same_place(found, each, whole)]
        )
        if parts:
            found.add(Pair(tuple(parts), (whole,)))


def _same_input(whole: Call, parts: Sequence[Call]) -> bool:
    pairs = [main_pair(whole.inputs, part.inputs) for part in parts]
    return all(pair is not None and (distance(*pair) or 0.0) <= LOOSE for pair in pairs)


def _same_sum(whole: Call, parts: Sequence[Call]) -> bool:
    """Do the weights of the parts add up to those of the whole?"""
    one, other = _whole(whole), sum((_whole(part) for part in parts), EMPTY)
    close = abs(one.squares - other.squares) <= 1e-2 * max(one.squares, other.squares)
    return one.count == other.count and close


def _parts_of(whole: Call, candidates: Sequence[Call]) -> list[Call]:
    size = whole.outputs[0].numel
    for start in range(len(candidates)):
        parts: list[Call] = []
        for each in candidates[start : start + MOST_PARTS]:
            parts.append(each)
            total = sum(part.outputs[0].numel for part in parts)
            if total == size and len(parts) > 1 and (_same_sum(whole, parts) or _same_input(whole, parts)):
                return parts
            if total > size:
                break
    return []
