"""Python frames: which are the program's, which are ours, who called a module, and where a frame is."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from layerstep._torch import module_file

__all__ = [
    "OURS",
    "call_text",
    "caller_of",
    "forget_locals",
    "function_label",
    "is_inline",
    "is_library_file",
    "is_ours",
    "is_program_file",
    "location_at",
    "location_of",
    "program_frames",
    "starts_program",
]

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMO = os.path.join(OURS, "demo", "")
"""The demo is a user's program, though it lies among our files."""
_DYNAMO = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(module_file))), "_dynamo", "")
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(os.path.dirname(_DYNAMO)) + os.sep)
_SITE = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_PROGRAM = os.path.join(OURS, "program.py")


def is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(OURS) and not file.startswith(_DEMO)


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """Is this a file of Python's own library or of an installed package, wherever that is installed?"""
    return file.startswith(_LIBRARIES) or _SITE.search(file) is not None


def is_program_file(file: str) -> bool:
    """Is this a file of the program itself: of no library, not even of Python's own?"""
    if not file or is_library_file(file):
        return False
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    return not file.startswith(OURS) or file.startswith(_DEMO)


def caller_of(frame: FrameType) -> FrameType | None:
    """The frame that called the module of this call frame: past torch's `__call__`, its class's and ours."""
    found = frame.f_back
    while found is not None and (_is_machinery(found) or is_ours(found)):
        found = found.f_back
    return found


def _is_machinery(frame: FrameType) -> bool:
    """Frames between a call and its module: torch's `__call__`, an override of it, the compiler's wrapper."""
    code = frame.f_code
    return code.co_filename.startswith((module_file, _DYNAMO)) or code.co_name == "__call__"


def program_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the program itself, innermost first: no library, no comprehension."""
    while frame is not None and not starts_program(frame):
        if is_program_file(frame.f_code.co_filename) and not is_inline(frame):
            yield frame
        frame = frame.f_back


def is_inline(frame: FrameType) -> bool:
    """Is this a comprehension or a generator expression: a part of a statement?"""
    return frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def starts_program(frame: FrameType) -> bool:
    """Is this where `layerstep run` starts a script? What lies further out is not the program's."""
    return frame.f_code.co_filename == _PROGRAM


def call_text(frame: FrameType) -> str:
    """The exact text of the call that a frame is in the middle of."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last != first or start is None or end is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first)
    return line.encode()[start:end].decode(errors="replace")


def location_of(frame: FrameType) -> str:
    """`model.py:41  x = self.attn(x)`: where a frame is, and the text of the line."""
    return location_at(frame.f_code.co_filename, frame.f_lineno)


def location_at(file: str, line: int) -> str:
    """The same for a place that is known by its file and line; empty if it is not."""
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}  {text}".rstrip() if file else ""


def function_label(frame: FrameType) -> str:
    """`train()`, `Net.forward()`, or the name of the file at its top level."""
    code = frame.f_code
    if code.co_name == "<module>":
        return os.path.basename(code.co_filename)
    return f"{code.co_qualname.replace('<locals>.', '')}()"


def forget_locals(frame: FrameType) -> None:
    """Drop the copy of a frame's locals that looking at them left behind.

    Up to Python 3.12 `frame.f_locals` is a snapshot which the frame keeps: it would hold tensors
    alive that the function has let go of. Frames of modules and classes have no snapshot, their
    `f_locals` is the namespace itself and must not be touched. Nor must a snapshot that the function holds
    itself: `locals()` hands out the same dictionary.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    if threading.gettrace() is not None and not _is_running_here(frame):
        return  # Python may be about to write the snapshot back in that thread, after a trace function
    snapshot = frame.f_locals
    if isinstance(snapshot, dict) and sys.getrefcount(snapshot) <= _REFERENCES:
        snapshot.clear()


def _is_running_here(frame: FrameType) -> bool:
    here: FrameType | None = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None


_REFERENCES = 3  # the frame's own, the variable `snapshot`, the argument of getrefcount
