"""A picture of a graph in the language of Mermaid, for Markdown pages."""

from __future__ import annotations

from collections import defaultdict

from layerstep.graph.colours import INK, fill_of, frame_label, label_of
from layerstep.graph.picture import Box, Frame, Picture
from layerstep.tensors.format import dims

__all__ = ["to_mermaid"]

_SHAPES = {"input": ("([", "])"), "output": ("([", "])"), "op": ("((", "))"), "join": ("((", "))")}


def to_mermaid(picture: Picture) -> str:
    boxes: dict[int, list[Box]] = defaultdict(list)
    inner: dict[int, list[Frame]] = defaultdict(list)
    for box in picture.boxes:
        boxes[box.frame].append(box)
    for frame in picture.frames:
        inner[frame.parent].append(frame)
    lines = ["flowchart TD"]
    for frame in inner[-1]:
        lines += _inside(frame, boxes, inner, picture, depth=1)
    for edge in picture.edges:
        shape = dims(edge.tensor.shape)
        arrow = f"-->|{_quoted(shape)}|" if shape else "-->"
        lines.append(f"  {edge.source} {arrow} {edge.target}")
    if picture.by:
        lines += [
            f"  style {box.key} fill:{fill_of(box, picture)},color:{INK}"
            for box in picture.boxes
            if box.value is not None
        ]
    return "\n".join(lines) + "\n"


def _inside(
    frame: Frame, boxes: dict[int, list[Box]], inner: dict[int, list[Frame]], picture: Picture, depth: int
) -> list[str]:
    space = "  " * depth
    lines = []
    for box in boxes[frame.call]:
        before, after = _SHAPES.get(box.role, ("[", "]"))
        lines.append(f"{space}{box.key}{before}{_quoted('<br/>'.join(_lines(box, picture)))}{after}")
    for each in inner[frame.call]:
        lines.append(f"{space}subgraph f{each.call} [{_quoted(_escaped(frame_label(each)))}]")
        lines += _inside(each, boxes, inner, picture, depth + 1)
        lines.append(f"{space}end")
    return lines


def _lines(box: Box, picture: Picture) -> list[str]:
    return [_escaped(line) for line in label_of(box, picture)]


def _escaped(text: str) -> str:
    """As Mermaid's entities: quotes and brackets would end the label or be read as HTML."""
    signs = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}
    return "".join(signs.get(sign, sign) for sign in text.replace("\n", " "))


def _quoted(text: str) -> str:
    return f'"{text}"'
