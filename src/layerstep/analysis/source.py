"""The source around the line that a frame is at."""

from __future__ import annotations

import inspect
import os
from types import FrameType

from layerstep.errors import UserError
from layerstep.views import Source

__all__ = ["source_around"]


def source_around(frame: FrameType, context: int, *, line: int = 0) -> Source:
    """A few lines of the function that runs there, with an arrow; `line`: where it was, if not here."""
    code, at = frame.f_code, line or frame.f_lineno
    try:
        lines, first = (
            inspect.getsourcelines(code) if code.co_name != "<module>" else inspect.findsource(code)
        )
    except (OSError, TypeError):
        raise UserError(f"the source of {os.path.basename(code.co_filename)} is not to be found") from None
    first = max(first, 1)
    low = max(at - context, first)
    high = min(at + context + 1, first + len(lines))
    shown = tuple(text.rstrip("\n") for text in lines[low - first : high - first])
    name = "" if code.co_name == "<module>" else code.co_qualname
    return Source(code.co_filename, low, shown, at, name)
