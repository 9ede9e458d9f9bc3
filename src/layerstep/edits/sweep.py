"""A sweep: the same patch at one module after another, and what each does to a number of the forward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerstep.calls.events import Phase
from layerstep.edits.acting import Acting, Make, Occasion, Reach
from layerstep.edits.futures import Future, about_numbers, outermost_call, run_future
from layerstep.edits.gradients import Gradient
from layerstep.edits.heads import head_slice, of_head, projection_of
from layerstep.edits.sources import SourceOf, inputs_of
from layerstep.edits.values import replacing, same_shape
from layerstep.engine.points import Edit
from layerstep.errors import UserError
from layerstep.expressions.scope import run_python
from layerstep.module_paths.where import Where
from layerstep.rerun.module_call import length_of
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = [
    "Swept",
    "head_patched",
    "head_trials",
    "metric_of",
    "modules_meant",
    "patched",
    "sweep",
    "token_trials",
    "value_of",
    "whole_trials",
]

MOST = 2_000
"""Runs of one sweep, each a forward."""


@dataclass(frozen=True, slots=True)
class Swept:
    """One run of a sweep."""

    path: str
    metric: float | None
    """None where the patch does not fit."""
    trouble: str = ""
    part: int | None = None
    """The token or head that was patched alone."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run of a sweep patches."""

    path: str
    edit: Edit
    part: int | None = None


def patched(path: str, source: SourceOf, *, reach: Reach, gradient: Gradient = "stop") -> Make:
    """Puts the value of another run in place of what a module returns."""

    def value(old: Tensor, occasion: Occasion) -> Tensor:
        return same_shape(source(occasion.place.path.partition("|")[0]), old, path)

    return replacing(value, reach=reach, gradient=gradient)


def head_patched(
    source: SourceOf, head: int, heads: int, *, reach: Reach, gradient: Gradient = "stop"
) -> Make:
    """Puts one head of another run in place of that of an attention, where its projection is given it."""

    def value(old: Tensor, occasion: Occasion) -> Tensor:
        path = occasion.place.path.partition("|")[0]
        whole = source(path)
        features = old.shape[-1] * heads
        if whole.shape != (*old.shape[:-1], features):
            raise UserError(
                f"{path} is given {[*old.shape[:-1], features]}, and the value has {list(whole.shape)}"
            )
        part: Tensor = whole[..., head_slice(whole, head, heads)].to(old)
        return part

    return replacing(of_head(value, head, heads), reach=reach, gradient=gradient, base="inp")


def value_of(session: Session, output: Any, text: str) -> Any:
    """What an expression makes of the model's output, which is `out` in it."""
    scope = session.run.scope_at(None)
    scope["out"] = output
    return run_python(text, scope)[0]


def metric_of(session: Session, future: Future, metric: str) -> float:
    """The number that an expression makes of the model's output, which is `out` in it."""
    try:
        return float(value_of(session, future.output, metric))
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{metric!r} is no single number", "metric out[0, -1, 5]") from None


def modules_meant(session: Session, where: str) -> list[str]:
    """The paths that WHERE means in a sweep."""
    return [path for path, _ in Where.parse(where).look_up(session.run.models)]


def whole_trials(session: Session, paths: list[str], source: SourceOf, *, reach: Reach) -> list[Trial]:
    """Each module by itself."""
    return [_trial(session, path, patched(path, source, reach=reach), reach=reach) for path in paths]


def token_trials(session: Session, paths: list[str], source: SourceOf, *, reach: Reach) -> list[Trial]:
    """Each module at each position of the sequence."""
    call = outermost_call(session)
    tokens = range(length_of(call.args, call.kwargs))
    if reach.tokens is not None:
        tokens = tokens[slice(*reach.tokens)]
    trials = []
    for path in paths:
        for at in tokens:
            one = replace(reach, tokens=(at, at + 1))
            trials.append(_trial(session, path, patched(path, source, reach=one), reach=one, part=at))
    return trials


def head_trials(session: Session, paths: list[str], text: str, *, reach: Reach) -> list[Trial]:
    """Each head of each attention."""
    found = [(path, *projection_of(session.run.models, path)) for path in paths]
    source = inputs_of(session, text, [projection for _, projection, _ in found])
    trials = []
    for path, projection, heads in found:
        for head in range(heads):
            make = head_patched(source, head, heads, reach=reach)
            edit = _edit(session, projection, make, reach=reach, phase=Phase.ENTER)
            trials.append(Trial(path, edit, head))
    return trials


def _trial(session: Session, path: str, make: Make, *, reach: Reach, part: int | None = None) -> Trial:
    return Trial(path, _edit(session, path, make, reach=reach), part)


def _edit(session: Session, path: str, make: Make, *, reach: Reach, phase: Phase = Phase.EXIT) -> Edit:
    return Edit(Where.parse(path), phase=phase, change=Acting(session.run, reach, make), set_by="")


def sweep(session: Session, trials: list[Trial], *, metric: str) -> tuple[float, list[Swept], list[Notice]]:
    """The metric of this forward, that with each trial by itself, and what must be known of them."""
    if len(trials) > MOST:
        raise UserError(
            f"this sweep would run {len(trials):,} forwards", f"at most {MOST:,}; name fewer modules"
        )
    call = outermost_call(session)
    without = run_future(session, call, keep=False)
    plain = metric_of(session, without, metric)
    rows = []
    for trial in trials:
        try:
            future = run_future(session, call, [trial.edit], keep=False)
            if not trial.edit.change.done:
                why = trial.edit.change.why_not or "it is not called in this forward"
                rows.append(Swept(trial.path, None, why, trial.part))
                continue
            rows.append(Swept(trial.path, metric_of(session, future, metric), part=trial.part))
        except UserError as error:
            rows.append(Swept(trial.path, None, str(error), trial.part))
    return plain, rows, about_numbers(without)
