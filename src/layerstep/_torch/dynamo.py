"""Compiled code: which of our functions dynamo must not compile, and whether the key of dispatch modes is on.

Seen on torch 2.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

__all__ = ["compiled_codes", "is_key_on", "keep_dynamo_out"]


def keep_dynamo_out(function: Callable[..., Any], *, callees: bool) -> None:
    """Keep dynamo from compiling this function, and with `callees` also what it calls.

    After a graph break, or where dynamo skips a function, operations run eagerly and call the handler of a
    mode while dynamo looks at every new frame. It has compiled a `count += 1` of ours. Fallback: it does so
    again, and warns of what it cannot follow.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if callees else default)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except (AttributeError, TypeError):
        return


def is_key_on() -> bool:
    """Is the dispatch key on that makes torch ask the modes of this thread? Fallback: yes."""
    is_included = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
    return is_included is None or bool(is_included(torch._C.DispatchKey.Python))


def compiled_codes() -> list[CodeType]:
    """The functions that dynamo has compiled: their lines do not run. Fallback: none is known."""
    convert = sys.modules.get("torch._dynamo.convert_frame")
    try:
        entries: Any = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
        seen = [reference() for reference in convert.input_codes.seen] if convert is not None else []
        return [code for code in seen if code is not None and entries(code)]
    except (AttributeError, TypeError):
        return []
