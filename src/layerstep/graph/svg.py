"""A picture of a graph as SVG: by Graphviz if its `dot` is installed, else in one column with arcs."""

from __future__ import annotations

import shutil
import subprocess
from html import escape

from layerstep.graph.colours import INK, LINE, fill_of, frame_label, label_of
from layerstep.graph.dot import to_dot
from layerstep.graph.picture import Box, Edge, Frame, Picture
from layerstep.tensors.format import dims

__all__ = ["drawn_by_us", "to_svg"]

SECONDS = 20
"""Graphviz may think for minutes about thousands of boxes."""
MOST_BOXES = 2_000
LINE_HEIGHT, PAD, GAP, LETTER, LANE = 15, 8, 26, 6.7, 14
_FONT = "ui-sans-serif, Helvetica, Arial, sans-serif"


def to_svg(picture: Picture) -> str:
    """Laid out by Graphviz, or by us where it is not there, fails, or takes too long."""
    program = shutil.which("dot")
    if program is not None and len(picture.boxes) <= MOST_BOXES:
        try:
            done = subprocess.run(
                [program, "-Tsvg"], input=to_dot(picture).encode(), capture_output=True, timeout=SECONDS
            )
            if done.returncode == 0:
                return done.stdout.decode()
        except (OSError, subprocess.TimeoutExpired):
            pass
    return drawn_by_us(picture)


class _Layout:
    """Boxes from top to bottom in the order in which they ran; an arc at the right leads what skips one."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.lines = {box.key: label_of(box, picture) for box in picture.boxes}
        widest = max((len(line) for lines in self.lines.values() for line in lines), default=10)
        self.parents = {frame.call: frame.parent for frame in picture.frames}
        deepest = max((self.depth(frame.call) for frame in picture.frames), default=0)
        self.width = widest * LETTER + 2 * PAD
        self.left = 10 + deepest * 12
        self.order = {box.key: at for at, box in enumerate(picture.boxes)}
        self.tops: dict[str, float] = {}
        y, frame = 34.0, -1
        for box in picture.boxes:
            y += 18 * max(self.depth(box.frame) - (self.depth(frame) if frame in self.parents else 0), 0)
            y += 8 if box.frame != frame else 0
            self.tops[box.key], frame = y, box.frame
            y += self.height(box) + GAP
        self.bottom = y
        self.lanes = self._lanes()
        self.right = self.left + self.width + deepest * 12
        self.full = self.right + 20 + (max(self.lanes.values(), default=0) + 1) * LANE

    def depth(self, call: int) -> int:
        depth = 0
        while self.parents.get(call, -1) >= 0:
            call, depth = self.parents[call], depth + 1
        return depth

    def height(self, box: Box) -> float:
        return len(self.lines[box.key]) * LINE_HEIGHT + 2 * PAD

    def _lanes(self) -> dict[tuple[str, str], int]:
        """A lane for each edge that skips a box; one that lies within another is nearer."""
        skips = [each for each in self.picture.edges if self._span(each) > 1]
        ends: list[list[tuple[int, int]]] = []
        found = {}
        for edge in sorted(skips, key=self._span):
            here = self.order[edge.source], self.order[edge.target]
            fits = (n for n, lane in enumerate(ends) if all(here[0] >= b or here[1] <= a for a, b in lane))
            lane = next(fits, len(ends))
            if lane == len(ends):
                ends.append([])
            ends[lane].append(here)
            found[edge.source, edge.target] = lane
        return found

    def _span(self, edge: Edge) -> int:
        return self.order[edge.target] - self.order[edge.source]


def drawn_by_us(picture: Picture) -> str:
    layout = _Layout(picture)
    boxes = {box.key: box for box in picture.boxes}
    title = f"{picture.title}, coloured by {picture.by}" if picture.by else picture.title
    width, height = round(layout.full), round(layout.bottom)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="{_FONT}" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        f'<text x="10" y="18" fill="{INK}" font-weight="bold">{escape(title)}</text>',
    ]
    parts += [_frame(frame, layout) for frame in picture.frames if frame.parent >= 0]
    parts += [_arrow(edge, layout, boxes) for edge in picture.edges]
    parts += [_box(box, layout) for box in picture.boxes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(frame: Frame, layout: _Layout) -> str:
    inside = [box for box in layout.picture.boxes if _is_in(box.frame, frame.call, layout)]
    if not inside:
        return ""
    room = 6 + 12 * (max(map(layout.depth, layout.parents)) - layout.depth(frame.call))
    top = min(layout.tops[box.key] for box in inside) - 18 - room / 2
    bottom = max(layout.tops[box.key] + layout.height(box) for box in inside) + room / 2
    x, width = layout.left - room, layout.width + 2 * room
    return (
        f'<rect x="{x:g}" y="{top:g}" width="{width:g}" height="{bottom - top:g}" rx="6" fill="none"'
        f' stroke="{LINE}" stroke-dasharray="4 3"/><text x="{x + 6:g}" y="{top + 12:g}" fill="{LINE}"'
        f' font-size="10">{escape(frame_label(frame))}</text>'
    )


def _is_in(call: int, frame: int, layout: _Layout) -> bool:
    while call >= 0 and call != frame:
        call = layout.parents.get(call, -1)
    return call == frame


def _arrow(edge: Edge, layout: _Layout, boxes: dict[str, Box]) -> str:
    top, bottom = layout.tops[edge.target], layout.tops[edge.source] + layout.height(boxes[edge.source])
    lane = layout.lanes.get((edge.source, edge.target))
    shape = escape(dims(edge.tensor.shape))
    style = f'fill="none" stroke="{LINE}" marker-end="url(#tip)"'
    if lane is None:
        x = layout.left + layout.width / 2
        return (
            f'<path d="M{x:g} {bottom:g}V{top:g}" {style}/><text x="{x + 6:g}" y="{top - 8:g}" fill="{LINE}"'
            f' font-size="9">{shape}</text>'
        )
    x, far = layout.left + layout.width, layout.right + 14 + lane * LANE
    start = layout.tops[edge.source] + layout.height(boxes[edge.source]) - PAD
    end = top + PAD
    return (
        f'<path d="M{x:g} {start:g}H{far - 6:g}q6 0 6 6V{end - 6:g}q0 6 -6 6H{x:g}" {style}>'
        f"<title>{shape}</title></path>"
    )


def _box(box: Box, layout: _Layout) -> str:
    top, lines = layout.tops[box.key], layout.lines[box.key]
    middle = layout.left + layout.width / 2
    rounded = 14 if box.role in ("op", "join") else 5
    text = "".join(
        f'<text x="{middle:g}" y="{top + PAD + 12 + at * LINE_HEIGHT:g}" text-anchor="middle" fill="{INK}"'
        f"{' font-weight=' + chr(34) + 'bold' + chr(34) if not at else ''}>{escape(line)}</text>"
        for at, line in enumerate(lines)
    )
    return (
        f'<rect x="{layout.left:g}" y="{top:g}" width="{layout.width:g}" height="{layout.height(box):g}"'
        f' rx="{rounded}" fill="{fill_of(box, layout.picture)}" stroke="{LINE}"/>{text}'
    )
