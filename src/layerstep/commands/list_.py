from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from layerstep.analysis.source import source_around
from layerstep.engine.events import Phase
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.views import Source


@command("list", "l", group="look", usage="[PATH]", examples=("list", "list blocks.0.attn"), complete="path")
def list_(session: Session, rest: str) -> Source:
    """Show the source that is running, an arrow at its line.

    At a module's exit that is the forward of its caller, at the line of the call; at an entry it is the
    module's own forward; at an exception, the line that raised it. With PATH: the forward of that module.
    """
    if rest:
        path, module = session.models.find(rest)
        return _forward(module, path)
    pause = session.pause
    if pause is None or not pause.stack:
        raise UserError("nothing has stopped yet", "`list PATH` shows the forward of a module")
    frame = pause.frame
    assert frame is not None
    if pause.phase is Phase.ENTER and pause.selected == 0 and frame.module is not None:
        return _forward(frame.module, frame.path, at_start=True)
    # Frame i is in the middle of the call that frame i - 1 came from.
    from_ = pause.stack[max(pause.selected - 1, 0)] if frame.module is not None else frame
    running, line = from_.caller, from_.line
    if pause.selected == 0 and frame.within is not None:
        running, line = frame.within, frame.within_line
    if running is None:
        raise UserError("there is no source here", "the call came from outside of Python")
    return source_around(running, session.config.context, line=line)


def _forward(module: nn.Module, path: str, *, at_start: bool = False) -> Source:
    function: Any = inspect.unwrap(type(module).forward)
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or ""
    except (OSError, TypeError):
        raise UserError(
            f"there is no source for {type(module).__name__}.forward", "it is not written in Python"
        ) from None
    text = tuple(line.rstrip("\n") for line in lines[:200])
    return Source(file, first, text, first if at_start else None, f"{path}  {type(module).__name__}.forward")
