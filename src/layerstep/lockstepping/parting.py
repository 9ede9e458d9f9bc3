"""Where two runs first differ: the first layer whose inputs agree and whose output does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layerstep.lockstepping.checks import Check
from layerstep.lockstepping.matching import CallMap, Pair
from layerstep.lockstepping.trace import Call, Trace

__all__ = ["Parting", "find_parting", "raised_in"]


@dataclass(frozen=True, slots=True, eq=False)
class _Moment:
    """Something to check, in the order of the first run: what a pair gets, or what it returns."""

    time: int
    pair: Pair
    is_input: bool
    agrees: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """The first layer where they differ, and at which pair that shows first."""

    where: Pair
    seen: Pair
    """The layer itself, or the first part of it that is handed other values."""
    is_handed: bool
    after: Pair | None
    """The last part of the layer whose output still agreed."""
    alone: tuple[Call, ...] = ()
    """Calls between the two that only one side has."""


def find_parting(
    mapping: CallMap, checks: dict[int, Check], other_weights: set[int]
) -> tuple[Parting | None, list[Pair]]:
    """The first moment that does not agree and that does not heal; and the pairs that heal.

    `other_weights` are the ids of pairs whose weights differ.
    """
    healed: list[Pair] = []
    moments = sorted(_moments(mapping, checks), key=lambda each: each.time)
    for moment in moments:
        if moment.agrees is not False:
            continue
        where = _holder(mapping, moment.pair) if moment.is_input else moment.pair
        if where is None:
            continue
        check = checks[id(moment.pair)]
        is_own = id(moment.pair) not in other_weights and (check.state or _is_own_doing(moment, check))
        if not is_own and _heals(moment, mapping, checks, moments):
            healed.append(moment.pair)
            continue
        return _parting(mapping, moments, moment, where), healed
    return None, healed


def _moments(mapping: CallMap, checks: dict[int, Check]) -> Iterator[_Moment]:
    for pair in mapping.pairs:
        check = checks[id(pair)]
        is_root = pair.a[0].parent is None
        is_telling = pair.is_sure and (pair.has_weights or not pair.is_leaf)
        if not is_root and is_telling:
            yield _Moment(pair.a[0].entered, pair, True, check.inputs_agree)
        if pair.a[-1].left >= 0 and (check.inputs_agree is not False or is_root):
            agrees = check.outputs_agree
            has_inputs = pair.a[0].inputs and pair.b[0].inputs
            if (
                agrees is False
                and check.inputs is None
                and has_inputs
                and not is_root
                and check.alone is None
            ):
                agrees = None
            yield _Moment(pair.a[-1].left, pair, False, agrees)


def _holder(mapping: CallMap, pair: Pair) -> Pair | None:
    """The innermost pair that holds both sides of a pair."""
    above = {id(call) for call in pair.b[0].ancestors()}
    for call in pair.a[0].ancestors():
        found = mapping.of_a.get(id(call))
        if found is not None and any(id(each) in above for each in found.b):
            return found
    return None


def _heals(moment: _Moment, mapping: CallMap, checks: dict[int, Check], moments: list[_Moment]) -> bool:
    """Does nothing differ after it, up to the end of the module around it? Then only the cut was another.

    A convolution with a folded norm returns what the norm returns in the other.
    """
    holder = _holder(mapping, moment.pair)
    while holder is not None:
        end = holder.a[-1].left
        later = [
            each.agrees for each in moments if moment.time < each.time <= end and each.pair is not moment.pair
        ]
        if False in later:
            return False
        if checks[id(holder)].outputs_agree and not checks[id(holder)].rest_differs:
            return True
        holder = _holder(mapping, holder)
    return False


def _is_own_doing(moment: _Moment, check: Check) -> bool:
    """Do equal layers make different things of one input? Then it counts, however little is left of it."""
    pair = moment.pair
    same_make = pair.has_weights or pair.a[0].kind == pair.b[0].kind
    return not moment.is_input and check.alone is not None and pair.is_sure and same_make


def _parting(mapping: CallMap, moments: list[_Moment], moment: _Moment, where: Pair) -> Parting:
    inside = {id(call) for call in where.a[0].within()} - {id(where.a[0])}
    earlier = [
        each
        for each in moments
        if each.time < moment.time and each.agrees and id(each.pair.a[0]) in inside and not each.is_input
    ]
    after = earlier[-1].pair if earlier else None
    if where is moment.pair and where.is_leaf:
        return Parting(where, where, False, None)
    return Parting(where, moment.pair, moment.is_input, after, tuple(_between(mapping, where, moment, after)))


def _between(mapping: CallMap, where: Pair, moment: _Moment, after: Pair | None) -> Iterator[Call]:
    """The leaves of both sides that have no counterpart and run between what agreed and what does not."""
    sides = (
        (where.a, mapping.of_a, after.a[-1].left if after else 0, moment.time),
        (where.b, mapping.of_b, after.b[-1].left if after else 0, _time_in_b(moment)),
    )
    for calls, known, start, end in sides:
        for call in calls[0].within():
            if call is not calls[0] and call.is_leaf and id(call) not in known and start < call.entered < end:
                yield call


def _time_in_b(moment: _Moment) -> int:
    call = moment.pair.b[0] if moment.is_input else moment.pair.b[-1]
    time = call.entered if moment.is_input else call.left
    return time if time >= 0 else 1 << 60


def raised_in(mapping: CallMap, trace: Trace, *, is_second: bool) -> Pair | None:
    """The innermost pair that a run did not leave."""
    known = mapping.of_b if is_second else mapping.of_a
    pairs = [known[id(call)] for call in trace.calls if call.left < 0 and id(call) in known]
    sure = [pair for pair in pairs if pair.is_sure]
    return sure[-1] if sure else None
