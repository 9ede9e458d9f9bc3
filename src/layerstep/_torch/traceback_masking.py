"""Code whose frames a traceback shows as those of the function that it replaces.

While models are being found, every module call goes through our replacement for torch's own. The program's
own tracebacks must read as they do without us: they pass no code of ours that could clean them. So the
replacement carries the file, name and line of the function that it replaces.
"""

from __future__ import annotations

import dis
from types import CodeType, FunctionType

__all__ = ["shown_as"]

_LONG_FORM = 14
"""An entry of `co_linetable` with line and columns (CPython, Objects/locations.md; the same from 3.11 on)."""
_UNITS = 8
"""How many instructions one entry can be about."""


def shown_as(function: FunctionType, other: CodeType) -> None:
    """Show the frames of a function at the last call that the other one makes.

    Fallback: where another Python writes the table differently, the function stays as it is.
    """
    calls = [
        each for each in dis.get_instructions(other) if each.opname.startswith("CALL") and each.positions
    ]
    if not calls:
        return
    line, last, start, end = calls[-1].positions or (None, None, None, None)
    if line is None or line != last or start is None or end is None:
        return
    code = function.__code__
    position = bytes([0, 0, *_varint(start + 1), *_varint(end + 1)])
    units = len(code.co_code) // 2
    table = b"".join(
        bytes([0x80 | _LONG_FORM << 3 | min(_UNITS, units - done) - 1]) + position
        for done in range(0, units, _UNITS)
    )
    shown = code.replace(
        co_filename=other.co_filename,
        co_name=other.co_name,
        co_qualname=other.co_qualname,
        co_firstlineno=line,
        co_linetable=table,
    )
    if set(shown.co_positions()) == {(line, line, start, end)}:
        function.__code__ = shown


def _varint(value: int) -> list[int]:
    """Six bits a byte, the lowest first; the seventh says that more follow."""
    parts = [value & 63]
    while value := value >> 6:
        parts[-1] |= 64
        parts.append(value & 63)
    return parts
