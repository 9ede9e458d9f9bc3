"""A dispatch mode that stays on outside any `with` block, and where it can be pushed and popped.

Torch asks dispatch modes by a dispatch key. At their end `inference_mode`, compiled code and the transforms
of torch.func set the keys back to what they were at their beginning. If a mode is pushed before such a block
and popped in it, the block leaves the key on without a mode, and torch asserts at the next operation. If a
mode is pushed in the block, it is off after it, and so is each mode of the user's above it. So our modes are
pushed and popped in two ways only: where no such block is around, and around one call of a module, as a
`with` block would do it. Seen on torch 2.13.0.
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
from layerstep._torch.graphs import is_in_backward
from layerstep._torch.guards import is_aside
from layerstep._torch.kernel_keys import follow_autocast, unfollow_autocast
from layerstep._torch.modes import DEFERRED_POP, DeferredPop, is_on_stack, pop_mode, push_below

__all__ = ["NO_BLOCKS", "KeyBlocks", "PersistentMode", "blocks_around"]


class KeyBlocks(NamedTuple):
    """The blocks around a frame that set dispatch keys back at their end."""

    inference: bool = False
    blocks: int = 0
    """Calls of compiled functions, transforms of torch.func, operators of higher order."""


NO_BLOCKS = KeyBlocks()
_BLOCKS = ("_functorch", "_higher_order_ops")


def blocks_around(frame: FrameType | None) -> KeyBlocks:
    """Which of these blocks a frame runs in. Fallback: a block that torch has renamed is not seen.

    This reads the frames. Torch's own stack of transforms is empty while an operation runs below them.
    """
    blocks = 0
    while frame is not None:
        blocks += _is_block(frame)
        frame = frame.f_back
    return KeyBlocks(torch.is_inference_mode_enabled(), blocks)


@functools.lru_cache(maxsize=1 << 14)
def _opens_block(path: str, name: str) -> bool:
    if name == "compile_wrapper" and "_dynamo" in path:
        return True
    folders = path.replace("\\", "/").split("/")
    return "torch" in folders and any(each in folders for each in _BLOCKS)


def _is_block(frame: FrameType) -> bool:
    code = frame.f_code
    return _opens_block(code.co_filename, code.co_name)


class PersistentMode(TorchDispatchMode):
    """Stays at the bottom of a thread's stack of modes. Pushed and popped only where torch allows it."""

    supports_higher_order_operators = True  # else `flex_attention` and `cond` raise under it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Any:
        follow_autocast(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        unfollow_autocast(self)

    def push_below(self) -> bool:
        """Go to the bottom of this thread's stack and stay; False where a block around forbids it."""
        if is_aside(self):  # a second time would be once more for each stop
            return True
        if is_on_stack(self):
            if is_key_on():
                return True
            self.pop_here()
        return blocks_around(sys._getframe(1)) == NO_BLOCKS and self.push_here()

    def push_for_call(self, frame: FrameType, module: nn.Module) -> bool:
        """At the pre-hooks of a call: push and stay; where a block forbids it, push for this call only."""
        return self.push_below() or swap_forward(frame, module, self._under_mode)

    @property
    def is_busy(self) -> bool:
        """Is its handler at a stop in this thread? Then torch has it off the stack, and puts it back."""
        return False

    def pop(self) -> bool:
        """Leave this thread's stack now; False where a block around forbids it.

        It may be gone already: torch drops what was pushed in a node of the backward pass at its end.
        """
        if blocks_around(sys._getframe(1)) != NO_BLOCKS:
            return False
        was_there = self.pop_here()
        if not was_there and not self.is_busy and not is_aside(self):
            self.forget()
        return was_there

    def pop_after_handler(self, kwargs: dict[str, Any], called_from: FrameType) -> None:
        """Called in its own handler: leave the stack as soon as torch has put the mode back there.

        Not in a backward pass: autograd lays the modes again for each node, and an operation of a node may be
        such a block, of which no frame tells. `called_from`: the frame that called the handler.
        """
        if not is_in_backward() and blocks_around(called_from) == NO_BLOCKS:
            kwargs[DEFERRED_POP] = DeferredPop(self.pop_here)

    def push_here(self) -> bool:
        """Push in whatever block this is. The caller must pop it at the end of the same call."""
        follow_autocast(self)
        return push_below(self)

    def pop_here(self) -> bool:
        """Pop in whatever block this is; False if the mode is not on this thread's stack.

        It is not there while its handler runs, but torch puts it back: so it still follows autocast.
        """
        was_there = pop_mode(self)
        if was_there:
            self.forget()
        return was_there

    def forget(self) -> None:
        """The mode is no longer on this thread's stack, whoever popped it."""
        unfollow_autocast(self)

    def _under_mode(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward_under_mode(*args: Any, **kwargs: Any) -> Any:
            is_pushed = not is_on_stack(self) and self.push_here()
            try:
                return forward(*args, **kwargs)
            finally:
                if is_pushed:
                    self.pop_here()

        return forward_under_mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:  # otherwise compiled code would run eagerly because of us
        return True


keep_dynamo_out(PersistentMode.pop_after_handler, callees=True)
