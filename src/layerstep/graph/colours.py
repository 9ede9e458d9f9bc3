"""Colours and labels of a picture, the same in every format."""

from __future__ import annotations

from collections.abc import Sequence

from layerstep.graph.picture import Box, Frame, Picture
from layerstep.graph.statistics import in_words
from layerstep.tensors.format import dims

__all__ = ["INK", "LINE", "fill_of", "frame_label", "label_of"]

INK, LINE = "#1f2328", "#57606a"
_PALE, _STRONG = (0xF6, 0xF8, 0xFA), (0xF8, 0x81, 0x66)
_ROLES = {"input": "#ddf4ff", "output": "#ddf4ff", "op": "#ffffff", "join": "#ffffff"}


def fill_of(box: Box, picture: Picture) -> str:
    """Its role, or how much it has of the figure that is asked for: pale is none, strong the most."""
    if not picture.by or box.role != "module":
        return _ROLES.get(box.role, "#f6f8fa")
    most = max((each.value for each in picture.boxes if each.value is not None), default=0.0)
    if box.value is None:
        return "#ffffff"
    share = max(box.value, 0.0) / most if most > 0 else 0.0
    mixed = (round(pale + (strong - pale) * share) for pale, strong in zip(_PALE, _STRONG, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def label_of(box: Box, picture: Picture) -> list[str]:
    """The lines in a box."""
    name = f"{box.name} ({box.number})" if box.number > 1 else box.name
    kind = f"{box.repeats} × {box.kind}" if box.repeats > 1 else box.kind
    shapes = ", ".join(f"{each.dtype} {dims(each.shape)}" for each in box.outputs[:2])
    size = f"{box.parameters:,} parameters" if box.parameters else ""
    figure = f"{picture.by} {in_words(picture.by, box.value)}" if box.value is not None else ""
    return [line for line in (name, kind, shapes, size, figure) if line]


def frame_label(frame: Frame) -> str:
    parts: Sequence[str] = (
        frame.name,
        f"{frame.repeats} × {frame.kind}" if frame.repeats > 1 else frame.kind,
    )
    return "  ".join(part for part in parts if part)
