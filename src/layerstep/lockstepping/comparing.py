"""Two runs side by side, from the mapping to the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from layerstep.errors import UserError
from layerstep.lockstepping.alignment import family
from layerstep.lockstepping.checks import (
    Check,
    Limits,
    check_pairs,
    eps_of_pairs,
    find_other_cuts,
    tried_alone,
)
from layerstep.lockstepping.matching import CallMap, Pair, map_calls
from layerstep.lockstepping.parting import Parting, find_parting, raised_in
from layerstep.lockstepping.remarks import about_cuts, about_healed, about_unseen, other_settings
from layerstep.lockstepping.result import Lockstep, Site
from layerstep.lockstepping.rounding import noise_of
from layerstep.lockstepping.running import Arguments, arguments_for, trace_of
from layerstep.lockstepping.trace import Call, Kept, Trace
from layerstep.lockstepping.values import arranged, distance, main_pair
from layerstep.lockstepping.weights import WeightDifference, compare_weights, differences_of
from layerstep.tensors.compare import compare
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["compare_models", "compare_traces"]


def compare_models(
    session: Session,
    a: tuple[str, nn.Module],
    b: tuple[str, nn.Module],
    given: Arguments,
    *,
    tolerance: float | None = None,
    paths: Mapping[str, str] | None = None,
) -> Lockstep:
    """Run both once on copies of one input; then the first once more, to see what rounding does."""
    one = trace_of(session, a[1], given, title=a[0])
    if one.raised:  # it may take another dtype than the input was made for
        given = arguments_for(a[1], given)
        one = trace_of(session, a[1], given, title=a[0])
    other = trace_of(session, b[1], arguments_for(b[1], given), title=b[0])
    return compare_traces(one, other, tolerance=tolerance, paths=paths, rerun=(session, a[1], given))


def compare_traces(
    a: Trace,
    b: Trace,
    *,
    tolerance: float | None = None,
    paths: Mapping[str, str] | None = None,
    rerun: tuple[Session, nn.Module, Arguments] | None = None,
) -> Lockstep:
    """Map two runs onto each other and find where they first differ. `rerun` can run the first once more."""
    if a.raised and b.raised:
        raise UserError(f"neither can be run on this input: {a.raised}", "`--input EXPR` gives another")
    with observing():
        mapping = map_calls(a, b, paths)
        weights = compare_weights(mapping)
    eps = eps_of_pairs(mapping, a, b)
    limits = Limits(tolerance)
    if rerun is not None and tolerance is None:
        session, model, given = rerun
        limits.noise = noise_of(session, a, model, given, eps=eps)
    checks = check_pairs(mapping, limits, eps)
    if rerun is not None and tolerance is None and b.has_models:
        tried_alone(rerun[0], b, checks, eps, mapping.pairs)
    find_other_cuts(mapping, checks)
    with observing():
        others = {id(pair) for pair in mapping.pairs if differences_of(pair, weights)}
        parting, healed = find_parting(mapping, checks, others)
        site = _site(parting, checks, weights) if parting is not None else None
        site = site or _raised(mapping, a, b, checks)
        folded = [check for check in checks.values() if check.with_others]
        for pair in (*healed, *(check.pair for check in folded)):
            made_up = differences_of(pair, weights)
            weights = tuple(each for each in weights if each not in made_up)
        answer = _answer(a, b, mapping, checks, site, weights, tolerance=tolerance)
        notes = (*about_healed(healed), *about_cuts(folded), *about_unseen(mapping, a, b, site))
        return replace(answer, notes=(*answer.notes, *notes))


def _answer(
    a: Trace,
    b: Trace,
    mapping: CallMap,
    checks: dict[int, Check],
    site: Site | None,
    weights: tuple[WeightDifference, ...],
    *,
    tolerance: float | None,
) -> Lockstep:
    root = next((pair for pair in mapping.pairs if pair.a[0] is a.calls[0]), None)
    within = [
        gap
        for check in checks.values()
        for gap, limit in ((check.inputs, check.input_limit), (check.outputs, check.output_limit))
        if gap is not None and gap <= limit
    ]
    notes = [*a.notes, *b.notes]
    notes += [f"{side.title} raised {side.raised}" for side in (a, b) if side.raised]
    if a.drew or b.drew:
        who = "both draw" if a.drew and b.drew else f"{(a if a.drew else b).title} draws"
        notes.append(f"{who} random numbers, from the same state of the streams")
    return Lockstep(
        a.title,
        b.title,
        site,
        weights=weights,
        mapped=tuple((one.name, other.name) for pair in mapping.pairs for one in pair.a for other in pair.b),
        alone_a=tuple(call.name for call in mapping.alone_a if not _does_nothing(call)),
        alone_b=tuple(call.name for call in mapping.alone_b if not _does_nothing(call)),
        calls=(len(a.calls), len(b.calls)),
        end=checks[id(root)].outputs if root is not None else None,
        drift=max(within, default=0.0),
        tolerance=tolerance,
        notes=tuple(dict.fromkeys(notes)),
    )


def _does_nothing(call: Call) -> bool:
    """Is it only a cover for others, or does it hand on what it gets, as dropout does in evaluation?"""
    if not call.is_leaf or not call.outputs:
        return True
    pair = main_pair(call.inputs, call.outputs)
    return pair is not None and pair[0].shape == pair[1].shape and distance(*pair) == 0.0


# --- what is said about the layer ---


def _site(parting: Parting, checks: dict[int, Check], weights: tuple[WeightDifference, ...]) -> Site:
    where, seen = parting.where, parting.seen
    check = checks[id(where)]
    shown = checks[id(seen)]
    one, other = (
        (seen.a[0].inputs, seen.b[0].inputs)
        if parting.is_handed
        else (seen.a[-1].outputs, seen.b[-1].outputs)
    )
    own = differences_of(where, weights) if where.is_leaf or where.is_piece else []
    if parting.is_handed and parting.after is not None:
        first = _around((seen.a[0], *parting.after.a), where.a[0])
        second = _around((seen.b[0], *parting.after.b), where.b[0])
    else:
        first, second = (_named_part(side, own, is_chain=where.is_chain) for side in (where.a, where.b))
    gap = shown.inputs if parting.is_handed else _output_gap(shown)
    limit = shown.input_limit if parting.is_handed else _output_limit(shown)
    return Site(
        first.path,
        second.path,
        (first.kind, second.kind),
        inputs=check.inputs,
        outputs=gap if not parting.is_handed else check.outputs,
        limit=limit,
        words=_words(
            seen,
            one,
            other,
            further=shown.further if parting.is_handed else "",
            state="" if parting.is_handed else shown.state,
        ),
        shows_at=_names(seen) if seen is not where else None,
        after=_names(parting.after) if parting.after is not None else None,
        between=tuple(f"{call.name} ({call.kind}{_state(call)})" for call in parting.alone[:4]),
        settings=tuple(other_settings(where)),
        weights=tuple(own),
    )


def _around(calls: tuple[Call, ...], outermost: Call) -> Call:
    """The innermost call that holds all of these: the code between them is its own."""
    shared = [each for each in calls[0].ancestors() if all(each in call.ancestors() for call in calls[1:])]
    inside = {id(call) for call in outermost.within()}
    return shared[0] if shared and id(shared[0]) in inside else outermost


def _named_part(side: tuple[Call, ...], differences: list[WeightDifference], *, is_chain: bool) -> Call:
    """Of several calls on one side: the one whose weights differ.

    Without any, it is the first of those that run side by side. Of those that run one after the other, it
    is the module around them, because the code between them is its own.
    """
    names = {name.rpartition(".")[0] for each in differences for name in (each.a, each.b)}
    for call in side:
        if any(f"{name}.".startswith(f"{call.path}.") for name in names):
            return call
    shared = [each for each in side[0].ancestors() if all(each in call.ancestors() for call in side)]
    return shared[0] if is_chain and len(side) > 1 and shared else side[0]


def _output_gap(check: Check) -> float | None:
    return check.alone if check.alone is not None else check.outputs


def _output_limit(check: Check) -> float:
    return check.alone_limit if check.alone is not None else check.output_limit


def _names(pair: Pair) -> tuple[str, str]:
    return (" + ".join(call.name for call in pair.a), " + ".join(call.name for call in pair.b))


def _state(call: Call) -> str:
    return ", in training" if family(call.kind) == "dropout" and call.settings.get("training") else ""


def _words(pair: Pair, one: list[Kept], other: list[Kept], *, further: str, state: str) -> str:
    if further:
        return f"the input {further} differs"
    if state:
        return f"{state} is another after the call"
    if pair.is_split and not pair.is_chain:
        return "the parts are not those of the whole"
    main = main_pair(one, other)
    if main is None:
        shapes = [", ".join(map(str, side[0].shape)) if side else "" for side in (one, other)]
        return f"shapes differ: [{shapes[0]}] and [{shapes[1]}]"
    both = arranged(*main)
    return compare(*both).words if both is not None else "different"


def _raised(mapping: CallMap, a: Trace, b: Trace, checks: dict[int, Check]) -> Site | None:
    """One of them ended by an exception, and nothing differed before."""
    for trace in (a, b):
        if not trace.raised or (a.raised and b.raised):
            continue
        pair = raised_in(mapping, trace, is_second=trace is b)
        if pair is not None:
            check = checks[id(pair)]
            names = pair.a[0], pair.b[0]
            inside = [call for call in trace.calls if call.left < 0][-1]
            return Site(
                names[0].path,
                names[1].path,
                (names[0].kind, names[1].kind),
                inputs=check.inputs,
                outputs=None,
                limit=check.output_limit,
                words=f"{trace.title} raised {trace.raised} in {inside.name}",
                settings=tuple(other_settings(pair)),
            )
    return None
