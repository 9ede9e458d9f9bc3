"""Dispatch modes in a program that knows nothing of them: where they may come and go; on torch 2.13.0.

A dispatch mode is on by a dispatch key. `inference_mode`, compiled code and the transforms of torch.func put
back the keys that they found. A mode that was laid before such a block and leaves inside it leaves a key
without a mode, at which torch asserts in the next operation; one that is laid inside is off after it, and so
is each of the user's modes on top of it. So a mode of ours comes and goes in two ways only: on open ground,
where no such block is around, and around one call of a module, as a `with` block would.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep._torch.dynamo import is_key_on, keep_dynamo_out
from layerstep._torch.forward_swap import swap_forward
from layerstep._torch.kernel_keys import follow_autocast, let_autocast_go
from layerstep._torch.modes import LEAVING, Leaving, lay_below, lies_below, take_out

__all__ = ["OPEN", "Ground", "LastingMode", "ground"]


class Ground(NamedTuple):
    """The blocks around a place that put dispatch keys back at their end."""

    inference: bool = False
    blocks: int = 0
    """Calls of compiled functions, transforms of torch.func, operators of higher order."""


OPEN = Ground()
_BLOCKS = ("_functorch", "_higher_order_ops")


def ground(frame: FrameType | None) -> Ground:
    """What is around a frame. Fallback: a block that torch has renamed is not seen.

    The frames tell, not torch's stack of transforms: that is empty while an operation runs below them.
    """
    blocks = 0
    while frame is not None:
        blocks += _is_block(frame)
        frame = frame.f_back
    return Ground(torch.is_inference_mode_enabled(), blocks)


@functools.lru_cache(maxsize=1 << 14)
def _opens_block(path: str, name: str) -> bool:
    if name == "compile_wrapper" and "_dynamo" in path:
        return True
    folders = path.replace("\\", "/").split("/")
    return "torch" in folders and any(each in folders for each in _BLOCKS)


def _is_block(frame: FrameType) -> bool:
    code = frame.f_code
    return _opens_block(code.co_filename, code.co_name)


class LastingMode(TorchDispatchMode):
    """Lies below all other modes of a thread, and comes and goes where torch survives it."""

    supports_higher_order_operators = True  # else `flex_attention` and `cond` raise under it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Any:
        follow_autocast(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        let_autocast_go(self)

    def lay(self) -> bool:
        """Lie below all others in this thread from now on; no where the ground is not open."""
        if lies_below(self):
            if is_key_on():
                return True
            self.take_away()
        return ground(sys._getframe(1)) == OPEN and self.put()

    def lay_for(self, frame: FrameType, module: nn.Module) -> bool:
        """At the pre-hooks of a call: lie from now on; where that may not be, for the time of this call."""
        return self.lay() or swap_forward(frame, module, self._during)

    def leave(self) -> bool:
        """Out of this thread's stack at once, if that may be."""
        return ground(sys._getframe(1)) == OPEN and self.take_away()

    def leave_after(self, kwargs: dict[str, Any]) -> None:
        """From inside its handler: out of the stack when torch has put it back there, if that may be."""
        if ground(sys._getframe(2)) == OPEN:
            kwargs[LEAVING] = Leaving(self.take_away)

    def put(self) -> bool:
        """Below all others here, wherever that is: only for who takes it out at the end of the same call."""
        follow_autocast(self)
        return lay_below(self)

    def take_away(self) -> bool:
        if not take_out(self):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """It is out of this thread's stack, by whatever way."""
        let_autocast_go(self)

    def _during(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward_under_mode(*args: Any, **kwargs: Any) -> Any:
            laid = not lies_below(self) and self.put()
            try:
                return forward(*args, **kwargs)
            finally:
                if laid:
                    self.take_away()

        return forward_under_mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:  # otherwise compiled code would run eagerly, on our account
        return True


keep_dynamo_out(LastingMode.leave_after, callees=True)
