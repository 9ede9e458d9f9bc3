"""Do the inputs of a pair agree, and do its outputs? Each against what rounding alone can do there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerstep._torch.tensors import is_tensor
from layerstep.lockstepping.alignment import family
from layerstep.lockstepping.matching import CallMap, Pair
from layerstep.lockstepping.rounding import Noise, eps_of, local_tolerance, terms_of
from layerstep.lockstepping.running import running_alone
from layerstep.lockstepping.trace import Call, Kept, Trace
from layerstep.lockstepping.values import distance, main_pair, others_differ, sketch_of
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Check", "Limits", "check_pairs", "eps_of_pairs", "find_other_cuts", "tried_alone"]

DRIFT = 20.0
"""Without a model to measure rounding by: results may be so many times as far apart as what went in."""
FLOOR = 8.0
"""The least limit then, in units of what one layer may differ by."""


@dataclass(slots=True, eq=False)
class Check:
    """What was found of one pair. None: it cannot be told."""

    pair: Pair
    inputs: float | None = None
    outputs: float | None = None
    input_limit: float = 0.0
    output_limit: float = 0.0
    alone: float | None = None
    """The second's module on the input of the first: how far its result is from the first's."""
    alone_limit: float = 0.0
    shapes_differ: bool = False
    further: str = ""
    """A further input that differs, such as a mask."""
    rest_differs: bool = False
    """A further output differs. It may be another one, so this alone does not count."""
    state: str = ""
    """A buffer that agrees before the call and not after it, such as a running mean."""
    with_others: tuple[Call, ...] = ()
    """Calls of one side alone that belong to the layer: a norm that the other side has folded in."""

    @property
    def inputs_agree(self) -> bool | None:
        if self.inputs is None:
            return None
        return self.inputs <= self.input_limit and not self.further

    @property
    def outputs_agree(self) -> bool | None:
        if self.with_others:
            return True
        if self.shapes_differ or self.state:
            return False
        if self.alone is not None:
            return self.alone <= self.alone_limit
        return None if self.outputs is None else self.outputs <= self.output_limit


@dataclass(slots=True, eq=False)
class Limits:
    """From where on a difference counts."""

    tolerance: float | None = None
    """What the user said, for everything."""
    noise: Noise | None = None
    drift: float = 0.0
    """Without measured noise: the largest difference so far that was within its limit."""

    def of_input(self, pair: Pair, eps: float) -> float:
        if self.tolerance is not None:
            return self.tolerance
        least = FLOOR * local_tolerance(eps, terms_of(pair.a[0]))
        if self.noise is not None:
            return max(least / FLOOR, self.noise.of_input(pair.a[0]))
        return least + DRIFT * self.drift

    def of_output(self, pair: Pair, eps: float, inputs: float) -> float:
        if self.tolerance is not None:
            return self.tolerance
        least = FLOOR * local_tolerance(eps, terms_of(pair.a[0]))
        if self.noise is not None:
            return max(least / FLOOR, *(self.noise.of_output(call) for call in pair.a))
        return least + DRIFT * max(inputs, self.drift if not pair.is_leaf else 0.0)


def eps_of_pairs(mapping: CallMap, a: Trace, b: Trace) -> dict[int, float]:
    """By the id of a call of the first: the spacing of the coarser dtype of the two."""
    coarsest = eps_of(*(each.dtype for each in b.state.values()))
    found = {}
    for call in a.calls:
        pair = mapping.of_a.get(id(call))
        outputs = [*call.outputs, *(pair.b[0].outputs if pair is not None else [])]
        eps = eps_of(*(each.values.dtype for each in outputs if each.is_float))
        found[id(call)] = eps if pair is not None else max(eps, coarsest)
    return found


def check_pairs(mapping: CallMap, limits: Limits, eps: dict[int, float]) -> dict[int, Check]:
    """The checks of all pairs, by the id of the pair."""
    found = {}
    with observing():
        for pair in mapping.pairs:
            found[id(pair)] = check = _checked(pair, limits, eps[id(pair.a[0])])
            seen = (check.inputs, check.input_limit), (check.outputs, check.output_limit)
            limits.drift = max(
                limits.drift, *(gap for gap, limit in seen if gap is not None and gap <= limit), 0.0
            )
    return found


def _checked(pair: Pair, limits: Limits, eps: float) -> Check:
    check = Check(pair)
    check.input_limit = limits.of_input(pair, eps)
    one, other = pair.a[0].inputs, pair.b[0].inputs
    main = main_pair(one, other)
    if main is not None:
        check.inputs = distance(*main)
        check.further = others_differ(one, other, max(check.input_limit, 1e-3))
    check.output_limit = limits.of_output(pair, eps, check.inputs or 0.0)
    if pair.is_split:
        check.outputs = _split_distance(pair, check.output_limit)
        return check
    outputs = main_pair(pair.a[0].outputs, pair.b[0].outputs)
    if outputs is not None:
        check.outputs = distance(*outputs)
        rest = others_differ(pair.a[0].outputs, pair.b[0].outputs, max(check.output_limit, 1e-3))
        check.rest_differs = bool(rest)
        is_turned = main is not None and main[0].shape != main[1].shape
        if is_turned and check.outputs_agree and not check.inputs_agree:
            check.inputs = None  # patches in place of an image: the same elements in another order
    elif pair.is_leaf and check.inputs_agree and pair.a[0].outputs and pair.b[0].outputs:
        check.shapes_differ = pair.has_weights or pair.a[0].kind == pair.b[0].kind
    if pair.is_leaf and check.inputs_agree:
        check.state = _other_state(pair.a[0], pair.b[0], check.output_limit)
    return check


def _other_state(one: Call, other: Call, limit: float) -> str:
    """The name of a buffer that both have, and that the two calls do not change in the same way."""
    for name, before in one.buffers.items():
        theirs = other.buffers.get(name)
        if theirs is None or theirs.shape != before.shape:
            continue
        starts, ends = (
            [Kept(name, each, tuple(each.shape)) for each in values]
            for values in ((before, theirs), (one.written.get(name, before), other.written.get(name, theirs)))
        )
        apart, after = distance(*starts), distance(*ends)
        if apart is not None and after is not None and apart <= limit < after:
            return name
    return ""


def _split_distance(pair: Pair, limit: float) -> float | None:
    """One result against several: as slices of it, in order; else by what does not depend on the order."""
    whole, parts = (pair.a[0], pair.b) if len(pair.a) == 1 else (pair.b[0], pair.a)
    if pair.is_chain:
        ends = main_pair(pair.a[-1].outputs, pair.b[-1].outputs)
        return distance(*ends) if ends is not None else None
    big, pieces = whole.outputs[0], [part.outputs[0] for part in parts]
    if big.is_sample or any(piece.is_sample for piece in pieces):
        return None
    sizes = [piece.shape[-1] if piece.shape else 1 for piece in pieces]
    if big.shape and sum(sizes) == big.shape[-1]:
        slices = big.values.split(sizes, dim=-1)
        gaps = [distance(Kept("", x, tuple(x.shape)), y) for x, y in zip(slices, pieces, strict=True)]
        known = [gap for gap in gaps if gap is not None]
        if known and len(known) == len(gaps) and min(known) <= max(limit, 1e-3):
            return max(known)
    total = sum((sketch_of(piece.values) for piece in pieces[1:]), sketch_of(pieces[0].values))
    mine = sketch_of(big.values)
    size = max(mine.squares, total.squares) or 1.0
    return 0.0 if abs(mine.squares - total.squares) <= 2 * limit * size else None


# --- layers that are cut otherwise ---


def find_other_cuts(mapping: CallMap, checks: dict[int, Check]) -> None:
    """A result that the other side has one call later: a convolution with the norm folded into it."""
    with observing():
        for pair in mapping.pairs:
            check = checks[id(pair)]
            if pair.is_leaf and not pair.is_split and check.outputs_agree is False:
                check.with_others = _same_later(pair, mapping, check.output_limit)


def _same_later(pair: Pair, mapping: CallMap, limit: float) -> tuple[Call, ...]:
    for call, other, alone in (
        (pair.a[0], pair.b[0], mapping.alone_a),
        (pair.b[0], pair.a[0], mapping.alone_b),
    ):
        later = [each for each in alone if each.parent is call.parent and each.entered > call.left]
        for at, each in enumerate(later[:3]):
            main = main_pair(each.outputs, other.outputs)
            if main is not None and (distance(*main) or 0.0) <= max(limit, 1e-6):
                return tuple(later[: at + 1])
    return ()


# --- one layer alone, on the input of its counterpart ---


def tried_alone(
    session: Session, b: Trace, checks: dict[int, Check], eps: dict[int, float], order: list[Pair]
) -> None:
    """Run each leaf of the second on the input of the first.

    What then differs is the layer's own doing, and not what it was handed: that shows a wrong `eps` though
    rounding upstream has moved the values further than it does.
    """
    root = b.calls[0].module
    assert root is not None
    with running_alone(session, root), torch.no_grad():
        for pair in order:
            if (ready := _ready(pair)) is not None:
                check, call, theirs, given = checks[id(pair)], pair.a[0], pair.b[0], ready
                result = _result(theirs, given)
                if result is not None:
                    with observing():
                        kept = [Kept("", result, tuple(result.shape))]
                        main = main_pair(call.outputs, kept)
                        check.alone = distance(*main) if main is not None else None
                        check.alone_limit = local_tolerance(eps[id(call)], terms_of(call))


def _ready(pair: Pair) -> Tensor | None:
    """The input of the first as the second's module takes it; None if that is not plain."""
    if pair.is_split or not pair.is_leaf:
        return None
    call, theirs = pair.a[0], pair.b[0]
    plain = len(call.inputs) == len(theirs.inputs) == 1 and len(theirs.outputs) == 1
    if not plain or theirs.module is None or not call.outputs or call.inputs[0].is_sample:
        return None
    mine, other = call.inputs[0], theirs.inputs[0]
    if mine.shape != other.shape or mine.is_float != other.is_float:
        return None
    return mine.values.to(other.values.device, other.values.dtype, copy=True)


def _result(call: Call, given: Tensor) -> Tensor | None:
    """What the module makes of it; None where it draws random numbers or cannot be run by itself."""
    assert call.module is not None
    if family(call.kind) == "dropout" and call.module.training:
        return None
    streams = RandomState()
    try:
        result = call.module(given)
    except Exception:  # it takes more than its input
        return None
    drew = bool(streams.changed())
    return result if is_tensor(result) and not drew else None
