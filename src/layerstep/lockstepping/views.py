"""A comparison as it is shown: where they differ, why, and how the layers were mapped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layerstep.lockstepping.result import Lockstep, Site
from layerstep.tensors.format import number
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

__all__ = ["lockstep_view"]

MOST_WEIGHTS = 3
COLUMNS = (Column("first", "path"), Column("second", "path"), Column("calls", right=True))


def lockstep_view(found: Lockstep, *, most: int = 20, with_map: bool = True) -> View:
    """The answer; with `most` rows of the mapping, in which the blocks of a model are one row."""
    views: list[View] = [_headline(found)]
    if found.at is not None:
        views.append(_about(found.at))
    views += _about_weights(found)
    views += [Notice(note) for note in found.notes]
    if with_map and found.mapped:
        views.append(_mapping(found, most))
    return Group(tuple(views))


def _headline(found: Lockstep) -> Notice:
    names = f"{found.a} and {found.b}"
    if found.at is not None:
        return Notice(f"{names} first differ in {found.at.name}", level="warn")
    if found.end is None:
        return Notice(f"{names} agree where they can be compared", level="good")
    within = "up to rounding" if found.tolerance is None else f"within {number(found.tolerance)}"
    apart = "to the bit" if found.end == 0 else f"{within}: their results are {number(found.end)} apart"
    return Notice(f"{names} agree {apart}", level="good")


def _about(at: Site) -> Fields:
    kinds = at.kinds[0] if at.kinds[0] == at.kinds[1] else f"{at.kinds[0]} | {at.kinds[1]}"
    return Fields((Span(at.name, "path"), Span(kinds, "type")), tuple(_lines(at)))


def _lines(at: Site) -> Iterator[tuple[str, View]]:
    if at.inputs is not None:
        yield "inputs", Text("equal" if not at.inputs else f"agree: {number(at.inputs)} apart")
    if at.shows_at is not None:
        yield "shows at", Text(f"the input of {_both(at.shows_at)}")
    if at.after is not None:
        yield "after", Text(f"{_both(at.after)}, whose output agrees")
    if at.between:
        yield "between", Text(f"{', '.join(at.between)}: no counterpart")
    yield "differs", Text(at.words)
    if at.outputs is not None:
        yield "outputs", Text(f"{number(at.outputs)} apart; {number(at.limit)} is allowed")
    for line in at.settings:
        yield "set", Text(line)
    for each in at.weights[:MOST_WEIGHTS]:
        yield "weights", Text(str(each))


def _both(names: tuple[str, str]) -> str:
    return names[0] if names[0] == names[1] else f"{names[0]} | {names[1]}"


def _about_weights(found: Lockstep) -> list[View]:
    told = set(found.at.weights) if found.at is not None else set()
    rest = [each for each in found.weights if each not in told]
    views: list[View] = [Notice(str(each), level="warn") for each in rest[:MOST_WEIGHTS]]
    if len(rest) > MOST_WEIGHTS:
        views.append(Notice(f"{len(rest) - MOST_WEIGHTS} more weights differ", level="warn"))
    return views


def _mapping(found: Lockstep, most: int) -> Table:
    rows: dict[tuple[str, str], int] = {}
    for one, other in found.mapped:
        key = (_folded(one), _folded(other))
        rows[key] = rows.get(key, 0) + 1
    shown = [(*key, str(count)) for key, count in list(rows.items())[:most]]
    pairs = "1 pair" if len(found.mapped) == 1 else f"{len(found.mapped)} pairs"
    notes = [f"{pairs} of {found.calls[0]} and {found.calls[1]} calls"]
    if len(rows) > most:
        notes[0] += f"; {len(rows) - most} more rows"
    for title, alone in ((found.a, found.alone_a), (found.b, found.alone_b)):
        if alone:
            notes.append(f"no counterpart for these of {title}: {_listed(alone)}")
    return Table(COLUMNS, tuple(shown), title="mapped", note="\n".join(notes))


def _folded(path: str) -> str:
    return re.sub(r"(?<![^.\s])\d+(?=\.|$| )", "*", path)


def _listed(names: Sequence[str], most: int = 5) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[_folded(name)] = counts.get(_folded(name), 0) + 1
    parts = [name if count == 1 else f"{name} ({count})" for name, count in counts.items()]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
