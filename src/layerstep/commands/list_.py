from __future__ import annotations

import inspect
import linecache
import os
import re
from types import CodeType, FrameType
from typing import Any

from torch import nn

from layerstep._torch import is_scripted
from layerstep.arguments import Given, Text
from layerstep.calls.events import Phase
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.expressions.source import function_lines, source_around
from layerstep.registry import command
from layerstep.source_lines.watcher import SourceLines
from layerstep.views import Source

_RANGE = re.compile(r"(\d+)(?:\s*,\s*(\d+))?")
MOST_LINES = 200


@command(
    "list",
    "l",
    group="look",
    args=Text("PATH | LINE[,LAST] | .", optional=True, name="place", completes="path"),
    examples=("list", "list blocks.0.attn", "list 20,30"),
    only_looks=True,
)
def list_(session: Session, given: Given) -> Source:
    """Show the source that is running, an arrow at its line.

    At a module's exit, this is the function that called it, at the line of the call. At an entry, it is the
    module's own forward. At an exception, it is the line that raised it, and at a line, the function around
    it. `list PATH` shows the forward of a module. `list LINE` shows the lines around that one in the file
    that runs here, and `list LINE,LAST` those lines. `longlist` shows the whole function.
    """
    rest = given.place
    lines = _RANGE.fullmatch(rest)
    if lines is not None and (lines[2] or not session.run.models.ending_in(rest)):
        return _lines(session, int(lines[1]), int(lines[2]) if lines[2] else 0)
    if rest and rest != ".":
        path, module = session.run.models.find(rest)
        return _forward(module, path)
    if _is_entering(session):
        return _entered(session)
    running, line = _running(session)
    return source_around(running, session.run.config.context, line=line)


@command(
    "longlist",
    "ll",
    group="look",
    args=(),
    examples=("longlist",),
    needs_pause=True,
    whole_word=True,
    only_looks=True,
)
def longlist(session: Session, given: Given) -> Source:
    """Show the whole function that is running.

    An arrow is at its line. It is cut at 200 lines.
    """
    if _is_entering(session):
        return _entered(session)
    running, line = _running(session)
    return source_around(running, MOST_LINES, line=line)


def _lines(session: Session, first: int, last: int) -> Source:
    """The lines around one, or from one to another; a LAST below the first is a count, as in pdb."""
    if session.run.pause is not None and session.run.pause.stack:
        running, at = _running(session)
        file, current = running.f_code.co_filename, at or running.f_lineno
    else:
        file, current = session.instruments.get(SourceLines).script, 0
    context = session.run.config.context
    if not last:
        first, last = max(first - context, 1), first + context
    last = min(last if last >= first else first + last, first + MOST_LINES)
    text = linecache.getlines(file)
    shown = tuple(line.rstrip("\n") for line in text[first - 1 : last])
    if not shown:
        name = os.path.basename(file) or "the program"
        raise UserError(f"{name} has no line {first}", f"it has {len(text)} lines")
    return Source(file, first, shown, current if first <= current <= last else None)


def _is_entering(session: Session) -> bool:
    pause = session.run.pause
    if pause is None or pause.frame is None:
        return False
    return pause.phase is Phase.ENTER and pause.selected == 0 and pause.frame.module is not None


def _entered(session: Session) -> Source:
    frame = session.run.pause.frame if session.run.pause is not None else None
    assert frame is not None and frame.module is not None
    return _forward(frame.module, frame.path, at_start=True)


def _running(session: Session) -> tuple[FrameType, int]:
    """The Python frame that is shown, and its line; 0 for the one that it is at."""
    pause = session.run.pause
    if pause is None or not pause.stack:
        raise UserError("nothing has stopped yet", "`list PATH` shows the forward of a module")
    frame = pause.frame
    assert frame is not None
    if frame.at_line and frame.within is not None:
        return frame.within, 0
    # Frame i is in the middle of the call that frame i - 1 came from.
    from_ = pause.stack[max(pause.selected - 1, 0)] if frame.module is not None else frame
    running, line = from_.caller, from_.line
    if pause.selected == 0 and frame.within is not None:
        running, line = frame.within, frame.within_line
    if running is None:
        raise UserError("there is no source here", "the call came from outside of Python")
    return running, line


def _forward(module: nn.Module, path: str, *, at_start: bool = False) -> Source:
    if is_scripted(module):
        scripted = str(getattr(module, "code", "")).splitlines()
        return Source(
            "TorchScript", 1, tuple(scripted[:200]), None, f"{path}  {type(module).__name__}.forward"
        )
    function: Any = inspect.unwrap(type(module).forward)
    code = getattr(function, "__code__", None)
    try:
        if not isinstance(code, CodeType):
            raise UserError("it is not written in Python")
        lines, first, note = function_lines(code)
    except UserError:
        raise UserError(
            f"there is no source for {type(module).__name__}.forward", "it is not written in Python"
        ) from None
    text = tuple(line.rstrip("\n") for line in lines[:MOST_LINES])
    title = "  ".join(filter(None, (path, f"{type(module).__name__}.forward", note)))
    return Source(code.co_filename, first, text, first if at_start else None, title)
