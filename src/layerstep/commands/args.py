from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from layerstep.arguments import Given
from layerstep.calls.stack import Frame
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.process.frames import function_label
from layerstep.registry import command
from layerstep.tensors.present import brief
from layerstep.views import Fields, Span


@command("args", "a", group="look", args=(), examples=("args",), needs_pause=True)
def args(session: Session, given: Given) -> Fields:
    """Show the arguments of the call that runs here.

    At a module, these are the arguments of its forward, by name. At a line, they are those of the function.
    """
    frame = session.run.pause.frame if session.run.pause is not None else None
    assert frame is not None
    limit = session.run.config.sample_above
    if frame.module is not None and frame.call is None and not frame.at_line:
        title, values = frame.path, _of_module(frame)
    elif frame.python is not None:
        title, values = function_label(frame.python), _of_function(frame.python)
    else:
        raise UserError("nothing is running here", "`where` shows what runs")
    items = tuple((name, brief(value, limit=limit)) for name, value in values.items())
    return Fields((Span(title, "path"), Span("" if items else "no arguments", "dim")), items)


def _of_module(frame: Frame) -> dict[str, Any]:
    assert frame.module is not None
    try:
        bound = inspect.signature(frame.module.forward).bind(*frame.args, **frame.kwargs)
    except (TypeError, ValueError):  # a forward that a library has replaced
        return {**{f"inp[{i}]": value for i, value in enumerate(frame.args)}, **frame.kwargs}
    return dict(bound.arguments)


def _of_function(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    local = frame.f_locals
    return {name: local[name] for name in code.co_varnames[:count] if name in local}
