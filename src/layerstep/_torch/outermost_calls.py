"""A replacement for `nn.Module.__call__` that reports the outermost module call of each thread.

It adds one look-up to each call. That costs about 0.2 µs, against 1.8 µs for a global hook, and the compiler
sees through it. Seen on torch 2.13.0.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from layerstep._torch.traceback_masking import shown_as

__all__ = ["ThreadInCall", "reporting_call"]

_torchs_call = nn.Module._wrapped_call_impl


class ThreadInCall(threading.local):
    """Does this thread run an outermost call already?"""

    is_in_call = False


def reporting_call(
    before: Callable[..., Any],
    announce: Callable[[nn.Module, FrameType], None],
    raised: Callable[[BaseException], None],
    *,
    thread: ThreadInCall,
) -> Callable[..., Any]:
    """What to put in place of `before`, the `nn.Module.__call__` of now.

    `announce` gets each outermost module before it runs, `raised` the exception that leaves it.
    `thread` outlives the replacement: one that is made during a call must know of that call.
    """
    is_compiling = torch.compiler.is_dynamo_compiling

    # The body of Module._wrapped_call_impl, not a call to it: a second Python frame would cost
    # more than the look-up. is_compiling comes first, because dynamo folds it away; without
    # it, dynamo guards on what follows and compiles again when that changes.
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if thread.is_in_call or is_compiling():
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        thread.is_in_call = True
        try:
            announce(self, sys._getframe())
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        except Exception as error:
            raised(error)
            raise
        finally:
            thread.is_in_call = False

    def call_through(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if thread.is_in_call or is_compiling():
            return before(self, *args, **kwargs)
        thread.is_in_call = True
        try:
            announce(self, sys._getframe())
            return before(self, *args, **kwargs)
        except Exception as error:
            raised(error)
            raise
        finally:
            thread.is_in_call = False

    is_torchs_own = before is _torchs_call  # if not, another library replaced it, for a reason of its own
    replacement: Any = call if is_torchs_own else call_through
    shown_as(replacement, _torchs_call.__code__)
    return replacement  # type: ignore[no-any-return]
