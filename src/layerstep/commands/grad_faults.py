from __future__ import annotations

from layerstep.commands.grad_steps import log_of
from layerstep.engine.points import Record
from layerstep.engine.session import Session
from layerstep.errors import UnknownPath, UserError
from layerstep.gradients.check import Check, Checked, GradCheck
from layerstep.gradients.no_gradient import missing_gradients, outside_optimizers
from layerstep.layers.activity import ENOUGH, Activity, ActivityCount, Units
from layerstep.layers.calls import LayerCall, calls_at, calls_here
from layerstep.module_paths.where import Where
from layerstep.points.description import described
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import Rerun, Watcher, rerun
from layerstep.tensors.format import dims, listed, number, place, share
from layerstep.views import Column, Notice, Table, View

__all__ = ["check", "dead", "none"]

RELUS = "type:*ReLU*"


def none(session: Session) -> View:
    """`grad none`."""
    if session.run.models.main is None:
        raise UserError("no model has run yet", "`continue` starts the run")
    missing = missing_gradients(session, log_of(session))
    notes = []
    outside = outside_optimizers(session)
    if outside:
        notes.append(f"in no optimizer that has stepped, so never changed by one: {listed(outside, 6)}")
    elif outside is None:
        notes.append("no optimizer has stepped yet")
    if any(each.kind == "not reached" for each in missing) and not session.backward_pass.graph.calls:
        notes.append("`break PATH backward` follows the next pass: then it can say more")
    if not missing:
        return Notice("every parameter has a gradient", "; ".join(notes), level="warn" if outside else "good")
    groups: dict[tuple[str, str], list[str]] = {}
    for each in missing:
        groups.setdefault((each.kind, each.reason), []).append(each.name)
    rows = [(kind, listed(names, 6), why) for (kind, why), names in groups.items()]
    columns = (Column("why", "key"), Column("parameters"), Column(""))
    return Table(columns, tuple(rows[: session.run.config.max_lines]), note="\n".join(notes))


def dead(session: Session, where: str) -> View:
    """`grad dead [WHERE]`."""
    counted = session.instruments.get(ActivityCount)
    point, activity = counted.point, counted.activity
    if activity is not None and not where:
        return _silent(activity, is_on=point in list(session.points))
    if point is not None:
        session.points.delete(point)
    activity = Activity(session)
    point = session.points.add(
        Record(Where.parse(where or RELUS), action=activity.see, set_by=f"grad dead {where}".rstrip())
    )
    try:
        session.intake.set_or_leave_pending(point)
    except UnknownPath:
        if where:
            raise
        raise UserError(
            "no module is a ReLU", "functions such as F.relu are not seen; `grad dead WHERE` names layers"
        ) from None
    counted.point, counted.activity = point, activity
    return Notice(
        f"counting from now on which units of {described(point)} are ever other than zero",
        f"`grad dead` again shows those that never were; `delete {point.number}` ends it",
        level="good",
    )


def _silent(activity: Activity, *, is_on: bool) -> View:
    if not activity.units:
        return Notice("no forward has been counted yet", "`continue`")
    rows = [_row(units) for units in activity.units]
    columns = (
        Column("layer", "path"),
        *(Column(name, right=True) for name in ("units", "dead", "share", "samples")),
        Column("which"),
    )
    notes = []
    fewest = min(units.samples for units in activity.units)
    if fewest < ENOUGH and any(units.silent for units in activity.units):
        notes.append(f"{fewest:,} samples are few: a unit may yet wake; below {ENOUGH:,} it is a hint only")
    if not any(units.silent for units in activity.units):
        notes.append("every unit was active at least once")
    if not is_on:
        notes.append("the counting was ended; `grad dead WHERE` begins anew")
    return Table(columns, tuple(rows), note="\n".join(notes))


def _row(units: Units) -> tuple[str, ...]:
    silent, total = units.silent, int(units.active.numel())
    which = listed([str(index) for index in silent], most=8)
    return (
        units.name,
        f"{total:,}",
        f"{len(silent):,}",
        share(len(silent), total),
        f"{units.samples:,}",
        which,
    )


def check(session: Session, path: str) -> View:
    """`grad check [PATH]`."""
    call = _call(session, path)
    probe = GradCheck(call.module)
    try:
        done = rerun(
            session, probe, args=call.args, kwargs=call.kwargs, progress=call.progress, watcher=Watcher()
        )
    except UserError as error:
        message = error.message.replace(f"<{GradCheck.__name__}>", call.path)
        raise UserError(message, error.hint) from None
    found: Check = done.output
    rows = [
        (
            each.name,
            dims(each.shape),
            str(each.agree),
            str(len(each.wrong)),
            str(each.unclear),
            _verdict(each),
        )
        for each in found.checked
    ]
    columns = (
        Column("of", "path"),
        Column("shape", "dim"),
        *(Column(name, right=True) for name in ("agree", "differ", "unclear")),
        Column(""),
    )
    title = f"{call.path}: autograd against central differences"
    return Table(columns, tuple(rows), title=title, note="\n".join(_notes(found, done, call.path)))


def _call(session: Session, name: str) -> LayerCall:
    frame = session.run.pause.frame if session.run.pause is not None else None
    if frame is not None and frame.call is not None:
        path, module = session.run.models.find(name or frame.path.partition("|")[0])
        kept = session.run.seen_calls.get(module)
        if kept is None:
            raise UserError(f"the input of {path} is gone in the backward pass", f"`break {path}`")
        return LayerCall(path, module, *kept, CallProgress.AFTER)
    if name:
        return calls_at(session, name)[0]
    if frame is None or frame.module is None:
        raise UserError("nothing has stopped yet", "`continue` to a stop")
    return next(call for call in calls_here(session) if call.module is frame.module)


def _verdict(each: Checked) -> str:
    if not each.wrong:
        return "" if each.agree else "no clear answer"
    first = each.wrong[0]
    if not each.has_gradient:
        return f"autograd passes nothing on; differences say {number(first.numeric)} at {place(first.index)}"
    factor = each.factor
    if factor is not None and abs(factor + 1) < 1e-2:
        return "the sign is wrong"
    if factor is not None and factor:
        return f"off by a factor of {number(factor)}"
    at, said, found = place(first.index), number(first.autograd), number(first.numeric)
    return f"at {at} autograd says {said}, differences {found}"


def _notes(found: Check, done: Rerun, path: str) -> list[str]:
    notes = []
    if not any(each.agree or each.wrong for each in found.checked):
        notes.append("no answer: its output differs from one evaluation to the next, or has no slope here")
    elif not any(each.wrong for each in found.checked):
        notes.append("the gradient is that of the forward, as far as it was looked at")
    if found.dtype.itemsize < 8:
        notes.append("it does not run in double precision: checked in single, with a tolerance of 3 %")
    if found.left:
        notes.append(f"{found.left:,} elements were not reached in time")
    return notes + done.caveats(path)
