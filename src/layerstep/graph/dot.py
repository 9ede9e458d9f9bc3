"""A picture of a graph in the language of Graphviz: a cluster for each module that is drawn open."""

from __future__ import annotations

from collections import defaultdict

from layerstep.graph.colours import INK, LINE, fill_of, frame_label, label_of
from layerstep.graph.picture import Box, Frame, Picture
from layerstep.tensors.format import dims

__all__ = ["to_dot"]


def to_dot(picture: Picture) -> str:
    boxes: dict[int, list[Box]] = defaultdict(list)
    inner: dict[int, list[Frame]] = defaultdict(list)
    for box in picture.boxes:
        boxes[box.frame].append(box)
    for frame in picture.frames:
        inner[frame.parent].append(frame)
    lines = [
        f"digraph {_quoted(picture.title)} {{",
        "  rankdir=TB",
        f'  node [shape=box style="rounded,filled" fontname="Helvetica" fontsize=11 color="{LINE}"'
        f' fontcolor="{INK}"]',
        f'  edge [fontname="Helvetica" fontsize=9 color="{LINE}" fontcolor="{LINE}"]',
    ]
    for frame in inner[-1]:
        lines += _inside(frame, boxes, inner, picture, depth=1)
    for edge in picture.edges:
        label = _quoted(dims(edge.tensor.shape))
        lines.append(f"  {edge.source} -> {edge.target} [label={label}]")
    return "\n".join([*lines, "}"]) + "\n"


def _inside(
    frame: Frame, boxes: dict[int, list[Box]], inner: dict[int, list[Frame]], picture: Picture, depth: int
) -> list[str]:
    space = "  " * depth
    lines = [_node(box, picture, space) for box in boxes[frame.call]]
    for each in inner[frame.call]:
        lines.append(f"{space}subgraph cluster_{each.call} {{")
        lines.append(f'{space}  label={_quoted(frame_label(each))} fontname="Helvetica" color="{LINE}"')
        lines += _inside(each, boxes, inner, picture, depth + 1)
        lines.append(f"{space}}}")
    return lines


def _node(box: Box, picture: Picture, space: str) -> str:
    shape = " shape=ellipse" if box.role in ("op", "join") else ""
    label = _quoted("\n".join(label_of(box, picture)))
    return f'{space}{box.key} [label={label} fillcolor="{fill_of(box, picture)}"{shape}]'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
