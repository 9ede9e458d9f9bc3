"""The source around the line that a frame is at: as it ran, also where its file has been edited since."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
from collections.abc import Iterator
from types import CodeType, FrameType

from layerstep.errors import UserError
from layerstep.expressions.expression import UNREADABLE
from layerstep.views import Source

__all__ = ["function_lines", "source_around"]

AS_IT_RAN = "as it ran; the file has changed since"
CHANGED = "the file has changed since it was loaded: the lines may be others"
MOST_BYTES = 4 << 20
"""A larger file is not compiled to find out whether it is still the one that runs."""


def source_around(frame: FrameType, context: int, *, line: int = 0) -> Source:
    """A few lines of the function that runs there, with an arrow; `line`: where it was, if not here."""
    code, at = frame.f_code, line or frame.f_lineno
    lines, first, note = function_lines(code)
    low = max(at - context, first)
    high = min(at + context + 1, first + len(lines))
    shown = tuple(text.rstrip("\n") for text in lines[low - first : high - first])
    name = "" if code.co_name == "<module>" else code.co_qualname
    return Source(code.co_filename, low, shown, at, "  ".join(filter(None, (name, note))))


def function_lines(code: CodeType) -> tuple[list[str], int, str]:
    """The lines of a function or a script, the number of the first, and what to know about them."""
    lines, note = _file_lines(code)
    if not lines:
        raise UserError(f"the source of {os.path.basename(code.co_filename)} is not to be found")
    if code.co_name == "<module>":
        return lines, 1, note
    first = min(max(code.co_firstlineno, 1), len(lines))
    try:
        block = inspect.getblock(lines[first - 1 :])
    except Exception:  # the file was edited and is no Python now
        block = lines[first - 1 : max(_last_line(code), first)]
    return block, first, note


def _file_lines(code: CodeType) -> tuple[list[str], str]:
    file = code.co_filename
    before = linecache.cache.get(file)
    known: list[str] = list(before[2]) if before is not None and len(before) == 4 else []
    linecache.checkcache(file)
    now = linecache.getlines(file)
    if known and known != now and _holds(known, code):
        return known, AS_IT_RAN
    return now, CHANGED if _is_newer(file) and not _holds(now, code) else ""


def _is_newer(file: str) -> bool:
    """Was the file written since this program started? Else it is what was loaded."""
    try:
        return os.path.getmtime(file) > _started()
    except OSError:
        return False


@functools.cache
def _started() -> float:
    import psutil  # 5 ms

    return float(psutil.Process().create_time())


def _holds(lines: list[str], code: CodeType) -> bool:
    """Do these lines compile to the code that runs?"""
    text = "".join(lines)
    if len(text) > MOST_BYTES:
        return True
    try:
        return any(
            code == each for each in _codes(compile(text, code.co_filename, "exec", dont_inherit=True))
        )
    except UNREADABLE:
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _last_line(code: CodeType) -> int:
    return max((line for each in _codes(code) for _, _, line in each.co_lines() if line), default=1)
