from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from layerstep._torch import own_parameters
from layerstep.arguments import Given, Where
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.layers.anomalies import anomalies_in
from layerstep.module_paths.where import Where as WherePattern
from layerstep.registry import command
from layerstep.tensors.finite import is_finite
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Notice, Table, View

MOST = 1_000
"""Tensors looked at in full; the rest only for NaN and Inf, which takes a hundredth of the time."""


@command(
    "anomalies",
    group="look",
    args=Where(optional=True),
    examples=("anomalies", "anomalies blocks.*"),
)
def anomalies(session: Session, given: Given) -> View:
    """Find what is odd in all tensors in view.

    It looks for NaN, Inf, extremes, constants, dead features, saturated activations and outliers: in the
    inputs and the output of this stop, the outputs in view, the parameters and their gradients. WHERE limits
    it to some modules. A tensor of -inf and 0 counts as a mask. Large tensors are sampled.
    """
    rows: list[tuple[str, str, str]] = []
    looked = bad = screened = 0
    with observing():
        for name, tensor, made_by in _in_view(session, given.where or "**"):
            looked += 1
            if looked > MOST and is_finite(tensor):
                screened += 1  # a NaN or an Inf would make the sum one
                continue
            found = anomalies_in(tensor, made_by, is_parameter=isinstance(tensor, nn.Parameter))
            bad += any(finding.is_bad for finding in found)
            rows += [(name, finding.what, finding.text) for finding in found]
    if not looked:
        raise UserError("no tensor is in view", "stop at a layer, or `record` some with --tensors")
    only = f"; {screened:,} of them only for NaN and Inf" if screened else ""
    if not rows:
        return Notice(f"nothing odd in {looked:,} tensors{only}", level="good")
    rows.sort(key=lambda row: row[1] not in ("nan", "inf"))
    most = session.run.config.max_lines
    columns = (Column("where", "path"), Column("what", "warn"), Column("evidence"))
    more = f"; {len(rows) - most:,} more findings" if len(rows) > most else ""
    note = f"{looked:,} tensors looked at{only}, {bad} with NaN or Inf{more}"
    return Table(columns, tuple(rows[:most]), note=note)


def _below(session: Session, found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """These modules and all that they contain, each once."""
    parts = {id(part): part for _, module in found for part in module.modules()}
    return [(session.run.models.path_of(part), part) for part in parts.values()]


def _in_view(session: Session, where: str) -> Iterator[tuple[str, torch.Tensor, nn.Module | None]]:
    """(name, tensor, the module that gave it out) of everything that can be looked at now."""
    modules = _below(session, WherePattern.parse(where).look_up(session.run.models))
    frame = session.run.pause.frame if session.run.pause is not None else None
    here = frame.module if frame is not None else None
    if frame is not None and any(module is here for _, module in modules):
        yield from ((f"inp{place}", tensor, None) for place, tensor in tensors_in(frame.inp))
        if frame.has_output:
            yield from ((f"out{place}", tensor, here) for place, tensor in tensors_in(frame.output))
    for path, module in modules:
        call = session.run.seen_calls.get(module) if module is not here else None
        if call is not None:
            yield from ((path + place, tensor, module) for place, tensor in tensors_in(call[2]))
        for name, parameter in own_parameters(module):
            yield f"{path}.{name}", parameter, None
            if parameter.grad is not None:
                yield f"{path}.{name}.grad", parameter.grad, None
