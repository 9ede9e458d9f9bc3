from __future__ import annotations

import math

from layerstep.arguments import Choice, Given, Keyword, Option, Real, Word
from layerstep.attention.heads import difference
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.layers.calls import LayerCall, calls_here
from layerstep.precision.lost_digits import Loss, Losses
from layerstep.precision.shadow_run import Shadower
from layerstep.registry import command
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import Rerun, rerun
from layerstep.tensors.finite import is_finite
from layerstep.tensors.format import number
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import dtype_name, tensors_in
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

SECONDS = 30.0


@command(
    "shadow",
    group="look",
    args=(
        Choice("fp64", also=("f64", "float64", "double"), what="precision"),
        Keyword("in", Word("PATH", completes="path", name="path")),
        Option("tol", Real("1e-3", what="relative error", name="tol")),
    ),
    examples=("shadow fp64", "shadow fp64 in blocks.1", "shadow fp64 in blocks.1 --tol 1e-5"),
)
def shadow(session: Session, given: Given) -> View:
    """Find the first op that loses digits, against float64.

    layerstep runs the module of this stop, or the one at PATH, once more, op by op: each op as it was, and
    once in float64 with operands that were also computed in float64. The answer shows the first op whose
    result is off by more than the tolerance although its operands are not, then the ops that lose most.
    Errors are relative: of each value, or of the root mean square where the value is smaller. `own` is the
    op's error against float64 on the same operands: its rounding, without what it inherits. Without `--tol`:
    1e-3, in half precision 16 units in the last place. Weights and inputs count as exact. Dropout does
    nothing; other random results, and those of round, floor and sign, are taken from the run. The run is not
    changed.
    """
    call = _call(session, given.path)
    losses = Losses(session.run.models.path_of, tolerance=given.tol)
    watcher = Shadower(losses.see, seconds=SECONDS)
    done = rerun(
        session, call.module, args=call.args, kwargs=call.kwargs, progress=call.progress, watcher=watcher
    )
    if losses.largest is None:
        left = _unshadowed(watcher)
        raise UserError(f"nothing in {call.path} computes with floats that could be followed", left)
    with observing():
        notes = [*_about_output(call, done, watcher, losses), *_about_rerun(call, done, watcher)]
    if losses.first is None:
        return _sound(call, losses, notes)
    return Group((_guilty(losses.first, losses), _table(losses.worst, notes)))


def _call(session: Session, path: str) -> LayerCall:
    running = {id(call.module): call for call in calls_here(session)}
    frame = session.run.pause.frame if session.run.pause is not None else None
    if not path and (frame is None or frame.module is None):
        raise UserError("nothing has stopped yet", "`continue` to a stop")
    if path:
        path, module = session.run.models.find(path)
    else:
        assert frame is not None and frame.module is not None
        path, module = frame.path.partition("|")[0], frame.module
    if id(module) in running:
        return running[id(module)]
    kept = session.run.seen_calls.get(module)
    if kept is None:
        raise UserError(
            f"what {path} was called with is not in view",
            f"`break {path}`, or `record {path} --tensors` before the forward",
        )
    return LayerCall(path, module, *kept, CallProgress.AFTER)


def _guilty(loss: Loss, losses: Losses) -> Fields:
    own = "" if math.isnan(loss.own) else f"  own {number(loss.own)}"
    title = (
        Span(loss.op, "code"),
        Span(f"in {loss.path}", "path"),
        Span(f"loses more than {number(losses.tolerance)}"),
    )
    return Fields(
        title,
        (
            ("at", Text(str(loss.place) or "no line of Python")),
            ("error", Text(f"before {number(loss.before)}  after {number(loss.after)}{own}")),
            ("", Text(loss.why)),
            *loss.operands,
        ),
    )


_COLUMNS = ("before", "after", "own")


def _table(worst: list[Loss], notes: list[str]) -> Table:
    rows = [
        (
            loss.op,
            loss.path,
            loss.dtype,
            number(loss.before),
            number(loss.after),
            number(None if math.isnan(loss.own) else loss.own),
            loss.place.name,
        )
        for loss in worst
        if loss.gain > 0
    ]
    columns = (
        Column("op", "code"),
        Column("layer", "path"),
        Column("dtype"),
        *(Column(name, right=True) for name in _COLUMNS),
        Column("at", "dim"),
    )
    return Table(columns, tuple(rows), title="where most is lost", note="\n".join(notes))


def _sound(call: LayerCall, losses: Losses, notes: list[str]) -> Notice:
    largest = losses.largest
    assert largest is not None
    limit = f"{number(losses.tolerance)} in {dtype_name(losses.dtype)}"
    where = f"{largest.op} in {largest.path}, {largest.place.name}".rstrip(", ")
    text = f"{call.path}: no op loses more than {limit}"
    text += f"; the largest error is {number(largest.after)}, of {where}"
    return Notice(text, "; ".join(notes), level="warn" if notes and "NaN" in notes[0] else "good")


def _about_output(call: LayerCall, done: Rerun, watcher: Shadower, losses: Losses) -> list[str]:
    errors = [watcher.error_of(tensor) for _, tensor in tensors_in(done.output)]
    known = [error for error in errors if error is not None]
    if not known:
        return []
    off = f"the output of {call.path} is off by {number(max(known))}"
    if losses.first is not None and max(known) <= losses.tolerance:
        return [f"{off}: what was lost does not reach it"]
    if not all(is_finite(tensor) for _, tensor in tensors_in(done.output)) and max(known) < math.inf:
        off += "; its NaN or Inf are so in f64, too: `stability` looks for their op"
    return [off]


def _about_rerun(call: LayerCall, done: Rerun, watcher: Shadower) -> list[str]:
    notes = []
    if watcher.ended:
        notes.append(f"not all of it was followed: {watcher.ended}; name a smaller part")
    if left := _unshadowed(watcher):
        notes.append(left)
    notes += (caveats := done.caveats(call.path))
    if call.progress is CallProgress.AFTER and not caveats:
        gap = difference(done.output, call.output)
        why = "in the run a part of it was one fused kernel" if done.fused else "its state has changed since"
        if gap:
            notes.append(f"the rerun differs from its output by {number(gap)}: {why}")
    return notes


def _unshadowed(watcher: Shadower) -> str:
    if not watcher.unshadowed:
        return ""
    names = ", ".join(sorted(watcher.unshadowed)[:4])
    return f"not shadowed but taken for right: {sum(watcher.unshadowed.values())} ops ({names})"
