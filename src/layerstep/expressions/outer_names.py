"""Names of the program's functions around a place, without `up`: innermost first."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from layerstep.process.frames import forget_locals, function_label, program_frames

__all__ = ["MISSING", "Found", "find_outside", "names_outside", "running_loss"]

MISSING = object()
_TENSOR_FILE = os.path.join("torch", "_tensor.py")


class Found:
    """A value, and the function that it was found in."""

    __slots__ = ("origin", "value")

    def __init__(self, value: Any, origin: str) -> None:
        self.value = value
        self.origin = origin


def find_outside(name: str, frame: FrameType | None) -> Found | None:
    """A name in the functions that have called this one, then among their globals."""
    outer = list(program_frames(frame.f_back if frame is not None else None))
    for each in outer:
        value = each.f_locals.get(name, MISSING)
        forget_locals(each)
        if value is not MISSING:
            return Found(value, _place_of(each))
    for each in outer:
        if name in each.f_globals:
            return Found(each.f_globals[name], os.path.basename(each.f_code.co_filename))
    return None


def names_outside(frame: FrameType | None) -> list[str]:
    """What `find_outside` can find, globals aside; for completion."""
    found: list[str] = []
    for each in program_frames(frame.f_back if frame is not None else None):
        found += [name for name in each.f_locals if name.isidentifier()]
        forget_locals(each)
    return found


def running_loss(frame: FrameType | None) -> Any:
    """The tensor whose `backward()` is running around here."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "backward" and code.co_filename.endswith(_TENSOR_FILE):
            return frame.f_locals.get("self", MISSING)
        frame = frame.f_back
    return MISSING


def _place_of(frame: FrameType) -> str:
    return f"{function_label(frame)} {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
