"""Views with every measured number as `#`: a transcript of times is then the same on any day.

It is done before anything is drawn, so that columns are as wide as their masks. Words, columns, counts and
the order of what differs clearly stay as they are; what takes next to no time has no order.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from layerstep.views import Source, Stack, Table, View

MASK = "#"
CLEAR = 6.0
"""Percent of the time; rows that have less stand in the order of their names."""
FAR = 3.0
"""So many times slower is a change that no noise makes."""
MEASURED = {"own ms", "±", "%", "fwd", "bwd", "total", "ms", "FLOP/s", "before ms", "after ms", "change"}
MEASURED |= {"95% interval"}

_NUMBER = r"[+-]?\d(?:[\d.,]{0,5}\d)?"
_UNITS = r"(?:ms|µs|s|%|samples/s|tokens/s|[kMGT]?FLOP/s)(?![\w/])"
_PATTERNS = (
    rf"{_NUMBER}–{_NUMBER}",
    rf"{_NUMBER}[kMGT]?(?= ?{_UNITS})",
    rf"(?<=own ){_NUMBER}",
    rf"(?<=reaches ){_NUMBER}",  # what the machine is able to do
    r"\d+(?= cores)|(?<=threads\()\d+",
)
_PACE = re.compile(r"(?:\n|; )the machine itself took [^\n;]* in the second(?:: below [^\n]*)?")
"""Said only where others have used the machine meanwhile."""
_TEXT = re.compile("|".join(_PATTERNS))
_BAR = re.compile(r"^[ █▏▎▍▌▋▊▉]{41} *(\d+)%(?= )", re.MULTILINE)


def masked(view: View) -> View:
    """The same view without its measured numbers."""
    return _inside(view)  # type: ignore[no-any-return]


def _inside(value: Any) -> Any:
    if isinstance(value, str):
        return _TEXT.sub(MASK, _PACE.sub("", _flame(value)))
    if isinstance(value, tuple):
        return tuple(map(_inside, value))
    if isinstance(value, Table):
        return replace(value, rows=_rows(value), title=_inside(value.title), note=_inside(value.note))
    if is_dataclass(value) and not isinstance(value, Source | Stack | type):
        return replace(value, **{each.name: _inside(getattr(value, each.name)) for each in fields(value)})
    return value


def _rows(view: Table) -> tuple[tuple[str, ...], ...]:
    names = [column.name for column in view.columns]
    rows = list(view.rows)
    if "%" in names:
        at = names.index("%")
        clear = [row for row in rows if float(row[at]) >= CLEAR]
        rest = sorted(row for row in rows if row not in clear)
        if names[0] == "kernel":  # there are more than are shown, and chance says which
            rest = [("…", *[""] * (len(names) - 1))]
        rows = clear + rest
    if "before ms" in names:  # the pace of the machine moves what only waits, and all of that together
        rows = [row for row in rows if row[0] == "step" or float(row[2] or 0) > FAR * float(row[1] or 0)]
    return tuple(
        tuple(MASK if cell and name in MEASURED else cell for name, cell in zip(names, row, strict=True))
        for row in rows
    )


def _flame(text: str) -> str:
    """Bars are as long as times; those of next to none may be there or not."""
    if not _BAR.search(text):
        return text
    lines = [line for line in text.splitlines() if float(_BAR.findall(line)[0]) >= CLEAR]
    return "\n".join(_BAR.sub(f"{MASK} {MASK}%", line) for line in lines)
