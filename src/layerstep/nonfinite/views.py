"""The birth of a NaN or Inf as a view: the operation, its operands, its line, and the way it took then."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from layerstep._torch.tensors import is_tensor
from layerstep.engine.causes import AtLine
from layerstep.engine.stop import Shown, Stop
from layerstep.module_paths.models import Models
from layerstep.nonfinite.kernel_trace import Link
from layerstep.nonfinite.origin import Origin, Part
from layerstep.tensors.present import short, tensor_view
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

__all__ = ["Born", "origin_view"]

MOST_LINKS = 8
MOST_OPERANDS = 6


@dataclass(frozen=True, slots=True)
class Born:
    """A catchpoint has found where a NaN or Inf was made."""

    origin: Origin
    models: Models

    def view(self, stop: Stop, shown: Shown) -> View:
        return Group((origin_view(self.origin, self.models, limit=shown.limit), AtLine().view(stop, shown)))


def origin_view(origin: Origin, models: Models, *, limit: int) -> View:
    """Everything that is known of it; tensors of more than `limit` elements are sampled."""
    if not origin.is_found:
        hint = "`catch nonfinite --every-op` checks each operation as it runs, from now on"
        if origin.is_from_ranks:
            hint = "`catch nonfinite` on that rank stops at the operation"
        return Group((Notice(origin.seen, level="error"), Notice(origin.note, hint, level="warn")))
    views: list[View] = [Notice(origin.seen, level="error"), _birth(origin, limit)]
    way = _way(models, origin.chain)
    if way is not None:
        views.append(way)
    return Group(tuple(views))


def _birth(origin: Origin, limit: int) -> Fields:
    title = [Span(_headline(origin), "bad"), Span(origin.detail, "dim")]
    if origin.path or origin.kind:
        title += [Span(origin.path or "the model", "path"), Span(origin.kind, "type")]
    if origin.forward:
        title.append(Span(f"forward {origin.forward}", "dim"))
    items: list[tuple[str, View]] = []
    for name, value in origin.operands[:MOST_OPERANDS]:
        items += _operand(name, value, limit)
    for name, value in origin.results[:MOST_OPERANDS]:
        items += _operand(name, value, limit)
    if origin.bad.any:
        items.append(("bad", Text(str(origin.bad))))
    if origin.place.file:
        items.append(("at", Text(str(origin.place))))
    if origin.source:
        items.append(("came with", Text(origin.source)))
    if reason := _reason(origin):
        items.append(("because", Text(reason)))
    if origin.note:
        items.append(("note", Text(origin.note)))
    return Fields(tuple(span for span in title if span.text), tuple(items))


def _headline(origin: Origin) -> str:
    word = "nan" if origin.bad.nan else "inf"
    if origin.source:
        return f"{word} read by {origin.op}"
    if origin.part is Part.STEP:
        return f"{word} written by {origin.op}"
    return f"{word} born in {origin.op}"


def _operand(name: str, value: Any, limit: int) -> list[tuple[str, View]]:
    if is_tensor(value):
        return [(name, tensor_view(value, limit=limit))]
    if isinstance(value, list | tuple) and any(is_tensor(item) for item in value):
        tensors = [item for item in value if is_tensor(item)]
        return [(f"{name}[{n}]", tensor_view(item, limit=limit)) for n, item in enumerate(tensors[:3])]
    return [] if value is None else [(name, Text(short(value)))]


def _way(models: Models, chain: tuple[Link, ...]) -> Table | None:
    """From the birth to where it was noticed."""
    links = _functions(chain)
    if len(links) < 2:
        return None
    shown = links if len(links) <= MOST_LINKS else [*links[: MOST_LINKS - 2], *links[-2:]]
    rows = tuple(
        (
            link.name,
            models.path_of(link.module) if link.module is not None else "",
            re.sub(r", first at .*", "", str(link.bad)),
            link.place.name,
        )
        for link in shown
    )
    left = len(links) - len(shown)
    columns = (Column("then", "code"), Column("in", "path"), Column("has"), Column("at"))
    return Table(columns, rows[1:], note=f"{left} links between them are not shown" if left else "")


def _functions(chain: tuple[Link, ...]) -> list[Link]:
    """One link for each function: the last of its kernels."""
    calls: dict[tuple[Any, ...], Link] = {}
    for link in reversed(chain):
        calls[link.name, id(link.module), link.place] = link
    return list(calls.values())


def _tensors(origin: Origin) -> dict[str, torch.Tensor]:
    return {name: value for name, value in origin.operands if is_tensor(value)}


def _reason(origin: Origin) -> str:
    """What is known of this operation, checked against its operands."""
    from layerstep.nonfinite.nan_causes import reason_for

    return reason_for(origin.op, origin.detail, _tensors(origin), origin.bad)
