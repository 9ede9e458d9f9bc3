from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from layerstep._torch import own_parameters
from layerstep.arguments import Given, Where
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.layers.calls import LayerCall, calls_here
from layerstep.module_paths.where import Where as WherePattern
from layerstep.precision.cancellation import Hazards
from layerstep.precision.shadow_run import Shadower
from layerstep.precision.stability import (
    Role,
    StabilityIssue,
    Thresholds,
    check_update,
    check_values,
    computes_in_f16,
    worst_first,
)
from layerstep.registry import command
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import rerun
from layerstep.tensors.format import number
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Notice, Table, View

MOST_TENSORS = 1_000
MOST_ALIKE, MOST_NAMED = 3, 4
"""Rows of the same kind, before they become one; names in that."""
SECONDS = 20.0
"""For all reruns of one answer together."""


@command(
    "stability",
    group="look",
    args=Where(optional=True),
    examples=("stability", "stability blocks.1", "stability **"),
)
def stability(session: Session, given: Given) -> View:
    """Find what is near overflow, underflow or lost digits.

    layerstep compares parameters, gradients and the activations in view with the range and the digits of
    their dtypes. If an optimizer has stepped, it also compares each gradient with the weight that it would
    change. Then it reruns the module of this stop and those that you stepped through, op by op and also in
    float64. It names the op and line that cancels, overflows, divides by zero or rounds too much. WHERE
    limits this to some modules; one that is still running runs whole, so `stability **` is the whole forward.
    `record WHERE --tensors` keeps more in view. The run is not changed. Dropout does nothing in the reruns.
    """
    if session.run.models.main is None:
        raise UserError("no model has run yet", "`continue` starts the run")
    chosen = WherePattern.parse(given.where or "**").look_up(session.run.models)
    parts = {id(part): part for _, module in chosen for part in module.modules()}
    modules = [(session.run.models.path_of(part), part) for part in parts.values()]
    issues, looked = _values(session, modules)
    found, notes = _operations(session, _calls(session, chosen if given.where else None))
    return _answer(session, [*found, *issues], [f"{looked:,} tensors looked at", *notes])


def _values(session: Session, modules: list[tuple[str, nn.Module]]) -> tuple[list[StabilityIssue], int]:
    issues: list[StabilityIssue] = []
    optimizers = [each.optimizer for each in session.run.training.optimizers if each.optimizer is not None]
    with observing():
        in_view = list(islice(_in_view(session, modules), MOST_TENSORS))
        in_f16 = computes_in_f16(tensor for _, tensor, _ in in_view)
        for name, tensor, role in in_view:
            issues += check_values(tensor, name, role=role, in_f16=in_f16)
            if role == "parameter":
                for optimizer in optimizers:
                    issues += check_update(tensor, name, optimizer)
    return issues, len(in_view)


def _in_view(session: Session, modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor, Role]]:
    frame = session.run.pause.frame if session.run.pause is not None else None
    here = frame.module if frame is not None else None
    for path, module in modules:
        output = None
        if frame is not None and module is here:
            yield from (
                (f"{path} inp{place}", tensor, "activation") for place, tensor in tensors_in(frame.inp)
            )
            output = frame.output if frame.has_output else None
        elif (call := session.run.seen_calls.get(module)) is not None:
            output = call[2]
        yield from ((path + place, tensor, "activation") for place, tensor in tensors_in(output))
        for name, parameter in own_parameters(module):
            yield f"{path}.{name}", parameter, "parameter"
            if parameter.grad is not None:
                yield f"{path}.{name}.grad", parameter.grad, "gradient"


def _calls(session: Session, chosen: list[tuple[str, nn.Module]] | None) -> list[LayerCall]:
    """The calls to run again, none in another: of the modules chosen, or of the one here and those passed."""
    pause = session.run.pause
    running = {id(call.module): call for call in calls_here(session)} if pause is not None else {}
    if chosen is None:
        frame = pause.frame if pause is not None else None
        here = frame.module if frame is not None else None
        running = {key: call for key, call in running.items() if call.module is here}
        chosen = list(session.run.models.everything())
    calls: dict[int, LayerCall] = {}
    for _, module in chosen:
        _collect(session, module, running, calls, set())
    inside = {id(part) for call in calls.values() for part in list(call.module.modules())[1:]}
    return [call for key, call in calls.items() if key not in inside]


def _collect(
    session: Session,
    module: nn.Module,
    running: dict[int, LayerCall],
    calls: dict[int, LayerCall],
    above: set[int],
) -> None:
    """The module's own call, or those of what is in it."""
    if id(module) in calls or id(module) in above:
        return
    kept = session.run.seen_calls.get(module)
    if id(module) in running:
        calls[id(module)] = running[id(module)]
    elif kept is not None:
        calls[id(module)] = LayerCall(session.run.models.path_of(module), module, *kept, CallProgress.AFTER)
    else:
        for child in module.children():
            _collect(session, child, running, calls, {*above, id(module)})


def _operations(session: Session, calls: list[LayerCall]) -> tuple[list[StabilityIssue], list[str]]:
    issues: list[StabilityIssue] = []
    notes: list[str] = []
    left, ops, ran = SECONDS, 0, 0
    unseen: set[str] = set()
    for call in calls:
        hazards = Hazards(
            session.run.models.path_of, thresholds=Thresholds(), has_gradients=torch.is_grad_enabled()
        )
        watcher = Shadower(hazards.see, seconds=left)
        try:
            done = rerun(
                session,
                call.module,
                args=call.args,
                kwargs=call.kwargs,
                progress=call.progress,
                watcher=watcher,
            )
        except UserError as error:
            notes.append(error.message)
            continue
        errors = [watcher.error_of(tensor) for _, tensor in tensors_in(done.output)]
        known = [error for error in errors if error is not None]
        issues += hazards.settle(max(known) if known and not watcher.ended else None)
        unseen |= watcher.unshadowed.keys()
        ops, ran, left = ops + hazards.heard, ran + 1, left - watcher.elapsed
        if watcher.ended:
            notes.append(f"ops after that not looked at: {watcher.ended}; a narrower WHERE")
            break
    names = ", ".join(call.path or "the model" for call in calls[:3])
    more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
    if ran:
        but = f", but not {', '.join(sorted(unseen)[:4])}" if unseen else ""
        notes.insert(0, f"{ops:,} ops of {names}{more} followed in f64{but}")
    elif not calls:
        notes.append("no op was followed: no call is in view at this stop")
    return issues, notes[:3]


def _answer(session: Session, issues: list[StabilityIssue], notes: list[str]) -> View:
    if not issues:
        return Notice("nothing is near its limits", "; ".join(notes), level="good")
    issues = _folded(worst_first(issues))
    most = session.run.config.max_lines // 4
    shown = issues[:most]
    rows = [(_where(issue), issue.kind, _evidence(issue)) for issue in shown]
    if len(issues) > most:
        notes = [f"{number(len(issues) - most)} more findings; WHERE narrows them", *notes]
    columns = (Column("where", "path"), Column("what", "warn"), Column("evidence"))
    return Table(columns, tuple(rows), note="\n".join(notes))


def _folded(issues: list[StabilityIssue]) -> list[StabilityIssue]:
    """What many tensors share is one row."""
    groups: dict[object, list[StabilityIssue]] = {}
    for issue in issues:
        is_alone = issue.severity == "error" or bool(issue.place)
        groups.setdefault(id(issue) if is_alone else (issue.kind, issue.advice), []).append(issue)
    folded: list[StabilityIssue] = []
    for first, *others in groups.values():
        if len(others) < MOST_ALIKE:
            folded += [first, *others]
            continue
        names = ", ".join(issue.layer for issue in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED:,} more" if len(others) > MOST_NAMED else ""
        folded.append(replace(first, evidence=f"{first.evidence}; alike {names}{more}"))
    return folded


def _where(issue: StabilityIssue) -> str:
    return issue.layer or "the model"


def _evidence(issue: StabilityIssue) -> str:
    advice = f"→ {issue.advice}" if issue.advice else ""
    return "\n".join(filter(None, (issue.evidence, issue.place, advice)))
