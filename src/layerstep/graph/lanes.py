"""A picture of a graph as rows of text: boxes from top to bottom, and lanes for what skips rows."""

from __future__ import annotations

from collections import defaultdict

from layerstep.graph.picture import Box, Frame, Picture
from layerstep.graph.statistics import in_words
from layerstep.tensors.format import dims
from layerstep.views import Column, Figure, Table

__all__ = ["lanes_view"]

MOST_LANES = 12
"""More would fill the screen; the edges beyond them are counted in the note."""


def lanes_view(picture: Picture, *, most: int, notes: tuple[str, ...] = ()) -> Table:
    """The rows of a picture, at most so many."""
    drawn, hidden = _lanes(picture)
    shape = {frame.call: frame for frame in picture.frames}
    rows: list[tuple[str, ...]] = []
    open_now: list[int] = []
    for at, box in enumerate(picture.boxes):
        chain = _chain(box.frame, shape)
        for depth, call in enumerate(chain):
            if open_now[depth : depth + 1] != [call]:
                rows.append(_frame_row(shape[call], depth, drawn.before(at), picture.by))
                open_now = chain[: depth + 1]
        open_now = chain
        rows.append(_box_row(box, len(chain), drawn.rows[at], picture.by))
    left = len(rows) - most
    said = [f"{picture.calls:,} module calls; ● reads the row above, ○ does not; lanes carry the rest"]
    said += [f"{hidden} edges are not drawn: `export model.dot` has them all"] if hidden else []
    said += list(notes)
    said += [f"{left:,} rows more; `graph PATH` shows a part"] if left > 0 else []
    columns = [Column(""), Column("module", "path"), Column("class", "type"), Column("output")]
    columns += [Column("parameters", right=True)]
    columns += [Column(picture.by, right=True)] if picture.by else []
    return Table(tuple(columns), tuple(rows[:most]), note="\n".join(said))


def _chain(call: int, frames: dict[int, Frame]) -> list[int]:
    """The open modules around a box, without the outermost, which is the whole."""
    found: list[int] = []
    while call in frames and frames[call].parent >= 0:
        found.append(call)
        call = frames[call].parent
    return found[::-1]


def _frame_row(frame: Frame, depth: int, lanes: str, by: str) -> tuple[str, ...]:
    kind = f"{frame.repeats} × {frame.kind}" if frame.repeats > 1 else frame.kind
    return (lanes, f"{'  ' * depth}{frame.name}", kind, "", "", *([""] if by else []))


def _box_row(box: Box, depth: int, lanes: str, by: str) -> tuple[str, ...]:
    kind = box.kind if box.role == "module" else {"op": "op", "join": "op"}.get(box.role, "")
    kind = f"{box.repeats} × {kind}" if box.repeats > 1 else kind
    name = f"{box.name} ({box.number})" if box.number > 1 else box.name
    size = Figure(f"{box.parameters:,}", box.parameters) if box.parameters else ""
    figure = Figure(in_words(by, box.value), box.value) if box.value is not None else ""
    outputs = ", ".join(f"{each.dtype} {dims(each.shape)}" for each in box.outputs[:2])
    outputs += ", …" if len(box.outputs) > 2 else ""
    return (lanes, f"{'  ' * depth}{name}", kind, outputs, size, *([figure] if by else []))


class _Lanes:
    def __init__(self, count: int) -> None:
        self.rows: list[str] = []
        self._open: list[list[int]] = [[] for _ in range(count + 1)]

    def note(self, at: int, lanes: list[int]) -> None:
        self._open[at] = lanes

    def before(self, at: int) -> str:
        """The lanes that run past, between a row and the one above it."""
        width = max(self._open[at], default=-1) + 1
        return "  " + "".join("│ " if lane in self._open[at] else "  " for lane in range(width)).rstrip()


def _lanes(picture: Picture) -> tuple[_Lanes, int]:
    at = {box.key: number for number, box in enumerate(picture.boxes)}
    readers: dict[int, list[int]] = defaultdict(list)
    follows = set()
    for edge in picture.edges:
        source, target = at[edge.source], at[edge.target]
        if target == source + 1:
            follows.add(target)
        else:
            readers[source].append(target)
    drawn, hidden = _Lanes(len(at)), 0
    busy: dict[int, tuple[int, set[int], int]] = {}
    for row, _box in enumerate(picture.boxes):
        drawn.note(row, list(busy))
        signs: dict[int, str] = {}
        for lane, (last, targets, _) in list(busy.items()):
            if row in targets:
                signs[lane] = "╯" if row == last else "┤"
            if row == last:
                del busy[lane]
        if readers[row]:
            free = (lane for lane in range(MOST_LANES) if lane not in busy and lane not in signs)
            new = next(free, None)
            if new is None:
                hidden += len(readers[row])
            else:
                busy[new] = (max(readers[row]), set(readers[row]), row)
                signs[new] = "╮"
        symbol = "●" if row in follows or row == 0 else "○"
        drawn.rows.append(symbol + _row(signs, set(busy)))
    return drawn, hidden


_CROSSED = {"╯": "┴", "┤": "┼", "╮": "┬"}


def _row(signs: dict[int, str], busy: set[int]) -> str:
    """The lanes of one row: `─│─╯` where a line from the box passes one lane to end another."""
    reach = max(signs, default=-1)
    width = max(reach, *busy, -1) + 1 if busy else reach + 1
    text = ""
    for lane in range(width):
        crossed = lane < reach
        sign = signs.get(lane)
        if sign is not None:
            sign = _CROSSED[sign] if crossed else sign
        elif lane in busy:
            sign = "│"
        else:
            sign = "─" if crossed else " "
        text += ("─" if lane <= reach else " ") + sign
    return text.rstrip()
