"""The dispatch mode of the meter: sees what every kernel returns, also in a backward and an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep.engine._torch.modes import Leaving, take_out

__all__ = ["AllocationMode"]


class AllocationMode(TorchDispatchMode):
    """Tells of each operation before it runs, and of what it returned."""

    supports_higher_order_operators = True  # else `flex_attention` and `cond` raise under it

    def __init__(
        self,
        before: Callable[[], None],
        after: Callable[[Tensor, FrameType], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_on = False
        """Else it hands on, and leaves the stack after the next operation."""
        self._before = before
        self._after = after
        self._failed = failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        try:
            if self.is_on:
                self._before()
        except Exception as error:
            self._failed(error)
        try:
            result = func(*args, **kwargs)
        finally:
            if not self.is_on:
                kwargs["layerstep"] = Leaving(partial(take_out, self))
        try:
            if self.is_on:
                self._tell(result, sys._getframe(1))
        except Exception as error:
            self._failed(error)
        return result

    def _tell(self, result: Any, frame: FrameType) -> None:
        if isinstance(result, Tensor):
            self._after(result, frame)
        elif isinstance(result, tuple | list):
            for each in result:
                if isinstance(each, Tensor):
                    self._after(each, frame)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:  # otherwise compiled code would run eagerly, on our account
        return True
