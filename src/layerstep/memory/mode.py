"""The dispatch mode of the meter. It sees what every kernel returns, also in a backward and an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from layerstep._torch.dynamo import keep_dynamo_out
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.persistent_mode import PersistentMode
from layerstep._torch.tensors import is_tensor

__all__ = ["AllocationMode"]


class AllocationMode(PersistentMode):
    """Reports each operation before it runs, and its result."""

    def __init__(
        self,
        before: Callable[[], None],
        after: Callable[[Tensor, FrameType], None],
        wrote: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.is_on = False
        """If not, the mode only runs kernels, and leaves the stack after the next operation where it can."""
        self._before = before
        self._after = after
        self._wrote = wrote
        self._failed = failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        try:
            if self.is_on:
                self._before()
        except Exception as error:
            self._failed(error)
        try:
            result = run_kernel(func, args, kwargs)
        finally:
            if not self.is_on:
                self.pop_after_handler(kwargs, sys._getframe(1))
        try:
            if self.is_on:
                self._tell(result, sys._getframe(1))
                if args and result is args[0]:  # in place
                    self._wrote(func, args, kwargs)
        except Exception as error:
            self._failed(error)
        return result

    def _tell(self, result: Any, frame: FrameType) -> None:
        if is_tensor(result):
            self._after(result, frame)
        elif isinstance(result, tuple | list):
            for each in result:
                if is_tensor(each):
                    self._after(each, frame)


# Else dynamo compiles them, too; what a kernel written in Python calls must still be compiled.
keep_dynamo_out(AllocationMode.__torch_dispatch__, callees=False)
keep_dynamo_out(AllocationMode._tell, callees=True)
