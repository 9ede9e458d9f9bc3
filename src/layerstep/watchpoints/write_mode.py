"""The dispatch mode of watchpoints: finds the kernels whose schema says that they write a watched tensor."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from layerstep._torch.dynamo import keep_dynamo_out
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.operators import arguments_of, written_arguments
from layerstep._torch.persistent_mode import PersistentMode
from layerstep.calls.operations import Place, name_of, user_frame
from layerstep.watchpoints.tensor_locator import PLAIN, plain_of
from layerstep.watchpoints.watchpoint import Watchpoint

__all__ = ["WriteMode", "is_declared"]

Around = Callable[[Any, Any, dict[str, Any], list[Watchpoint]], Any]
"""Called with a kernel, its arguments and the points that it may write, instead of it."""
Moved = Callable[[Watchpoint], None]
"""Called before an op with a point whose memory has moved."""


@dataclass(frozen=True, slots=True)
class _Slots:
    """Which arguments of a kernel are written."""

    positions: tuple[int, ...]
    names: tuple[str, ...]
    declared: bool
    """By the schema; batch norm's does not say that it writes its running statistics."""


_written: dict[Any, _Slots | None] = {}
_UNDECLARED = ("running_mean", "running_var")


def _learn(func: Any) -> _Slots | None:
    arguments = arguments_of(func)
    declared = [each for _, each in written_arguments(func)]
    hidden = [each for each in arguments if each.name in _UNDECLARED and each not in declared]
    names = {each.name for each in (*declared, *hidden)}
    positions = [i for i, each in enumerate(arguments) if each.name in names and not each.kwarg_only]
    by_name = [each.name for each in arguments if each.name in names and each.kwarg_only]
    slots = _Slots(tuple(positions), tuple(by_name), bool(declared)) if names else None
    _written[func] = slots
    return slots


_UNKNOWN = object()


class _Here(threading.local):
    """Is the handler of this thread doing more than to hand on?"""

    inside = False

    def __enter__(self) -> None:
        self.inside = True

    def __exit__(self, *_: object) -> None:
        self.inside = False


class WriteMode(PersistentMode):
    """Sees every kernel, in the backward and in an optimizer, too."""

    def __init__(self, around: Around, moved: Moved, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self.points: tuple[Watchpoint, ...] = ()
        """Without any the mode does nothing, and leaves the stack after the next op."""
        self._around = around
        self._moved = moved
        self._failed = failed
        self._last: tuple[Any, CodeType, int] | None = None
        self._here = _Here()

    @property
    def is_busy(self) -> bool:
        """Is its handler at a stop in this thread? Then torch has it off the stack, and puts it back."""
        return self._here.inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        hits: list[Watchpoint] | None = None
        try:
            if self.points:
                for point in self.points:
                    if point.find_pointer() != point.pointer:
                        with self._here:
                            self._moved(point)
                slots: Any = _written.get(func, _UNKNOWN)
                if slots is _UNKNOWN:
                    slots = _learn(func)
                if slots is not None:
                    hits = self._hit(slots, args, kwargs)
                frame = user_frame(sys._getframe(1))
                if frame is not None:
                    self._last = (func, frame.f_code, frame.f_lasti)
        except Exception as error:
            self._failed(error)
        try:
            if not hits:
                return run_kernel(func, args, kwargs)
            with self._here:
                return self._around(func, args, kwargs, hits)
        finally:
            if not self.points:
                self.pop_after_handler(kwargs, sys._getframe(1))

    def _hit(self, slots: _Slots, args: Any, kwargs: Any) -> list[Watchpoint]:
        hits: list[Watchpoint] = []
        for position in slots.positions:
            if position < len(args):
                self._add_hits(hits, args[position])
        for name in slots.names:
            if name in kwargs:
                self._add_hits(hits, kwargs[name])
        return hits

    def _add_hits(self, hits: list[Watchpoint], written: Any) -> None:
        points = self.points
        for each in written if type(written) is list else (written,):
            tensor = each if type(each) in PLAIN else plain_of(each)
            if tensor is None:
                continue
            try:
                first = tensor.data_ptr()
            except RuntimeError:  # sparse, or inside a transform: no memory of its own
                continue
            for point in points:
                if point.storage <= first < point.end and point.overlaps(tensor) and point not in hits:
                    hits.append(point)

    def place_of_last(self) -> str:
        """The op before, and its line."""
        if self._last is None:
            return ""
        func, code, instruction = self._last
        line = next(itertools.islice(code.co_positions(), instruction // 2, None), (0,))[0]
        return f"{name_of(func)} at {Place(code.co_filename, line or 0).name}"


# Else dynamo compiles it, too; what a kernel written in Python calls must still be compiled.
keep_dynamo_out(WriteMode.__torch_dispatch__, callees=False)
keep_dynamo_out(WriteMode._hit, callees=True)


def is_declared(func: Any) -> bool:
    """Does the schema of a kernel say that it writes?"""
    slots = _written.get(func)
    return slots is not None and slots.declared
