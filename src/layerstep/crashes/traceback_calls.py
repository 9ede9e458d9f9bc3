"""What a traceback knows: the frames that an exception came through, and the module calls among them.

The frames of a traceback keep their locals and what they were called from, so the module stack at the raise
can be rebuilt after it has been left. Where each of them was is the traceback's to say: a frame that handles
the exception has gone on to other lines meanwhile.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from layerstep._torch import called_module, is_wrapper, module_call_code
from layerstep.calls.stack import Frame
from layerstep.crashes.inplace_writes import Write
from layerstep.module_paths.models import Models
from layerstep.process.frames import caller_of, is_ours

__all__ = [
    "Crash",
    "PassedCall",
    "Spot",
    "comes_from_module",
    "crash_of",
    "errors_behind",
    "is_control_flow",
    "is_users",
    "leave_out_ours",
]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_CONTROL = frozenset(["_StopRecomputationError", "Quit", "StopAsyncIteration", "CancelledError"])
_FROM_COMPILER = frozenset(["TorchRuntimeError", "BackendCompilerFailed", "InternalTorchDynamoError"])
"""What the compiler raises to its user; its other exceptions are its own way to go on."""


class Spot(NamedTuple):
    """A frame of a traceback, and where it was."""

    frame: FrameType
    line: int
    instruction: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def text(self) -> str:
        """The exact text of the expression that raised here; empty where the source is not to be found."""
        positions = list(self.frame.f_code.co_positions())
        first, last, start, end = positions[self.instruction // 2]
        if first is None or last is None or start is None or end is None:
            return ""
        lines = [linecache.getline(self.file, number).encode() for number in range(first, last + 1)]
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
        return b"".join(lines).decode(errors="replace")

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{os.path.basename(self.file)}:{self.line}  {text}".rstrip()


PassedCall = tuple[str, str, str, str]
"""Path, type, inputs, outputs of a call that finished before."""


@dataclass(frozen=True, slots=True, eq=False)
class Crash:
    """An exception and where it was raised: the frames and the module calls, innermost first."""

    error: BaseException
    spots: tuple[Spot, ...]
    stack: tuple[Frame, ...]
    writes: tuple[Write, ...] = ()
    """The in-place writes that were noted before it."""

    @property
    def inner(self) -> Frame | None:
        """The innermost module call."""
        return next((frame for frame in self.stack if frame.module is not None), None)

    @property
    def site(self) -> Spot | None:
        """The innermost line of the user's code."""
        return next((spot for spot in self.spots if is_users(spot.frame)), None)


def is_users(frame: FrameType) -> bool:
    """Is this code neither torch's nor ours?"""
    file = frame.f_code.co_filename
    return not (is_ours(frame) or file.startswith((_TORCH, "<frozen", "<__array_function__")))


def is_control_flow(error: BaseException) -> bool:
    """Is this a way to go on rather than a failure? It never stops a run."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        return True
    kind = type(error)
    if kind.__module__.startswith("torch._dynamo"):
        return kind.__name__ not in _FROM_COMPILER
    return any(base.__name__ in _CONTROL for base in kind.__mro__)


def errors_behind(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it was raised from, the newest first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def leave_out_ours(error: BaseException) -> None:
    """Take our own frames out of a traceback, as far as the exception has come."""
    for one in errors_behind(error):
        trace = one.__traceback__
        while trace is not None:
            following = trace.tb_next
            while following is not None and is_ours(following.tb_frame):
                following = following.tb_next
            if following is not trace.tb_next:
                trace.tb_next = following
            trace = following


def crash_of(error: BaseException, models: Models) -> Crash:
    """Where an exception was raised. One that wraps another is followed to where a module is to be seen."""
    one = next(filter(comes_from_module, errors_behind(error)), error)
    spots = _spots_of(one)
    return Crash(one, tuple(spots), tuple(_stack_of(spots, models)))


def comes_from_module(error: BaseException) -> bool:
    """Has an exception come through a module call?"""
    return any(_is_call(spot.frame) for spot in _spots_of(error))


def _spots_of(error: BaseException) -> list[Spot]:
    spots: list[Spot] = []
    trace = error.__traceback__
    while trace is not None:
        spots.append(Spot(trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    spots.reverse()
    return spots


def _is_call(frame: FrameType) -> bool:
    return frame.f_code is module_call_code


def _stack_of(spots: list[Spot], models: Models) -> list[Frame]:
    """The module calls that an exception came through, and those around them that it has not reached yet."""
    lines = {id(spot.frame): spot.line for spot in spots}
    stack = []
    for call, module, args, kwargs in _calls(spots):
        caller = caller_of(call)
        stack.append(Frame(models, module, args=args, kwargs=kwargs, caller=caller))
        stack[-1].line = lines.get(id(caller), 0)
    for index, frame in enumerate(stack):
        frame.depth = len(stack) - index
    site = next((spot for spot in spots if is_users(spot.frame)), None)
    if not stack:
        stack = [Frame(models, None, caller=site.frame if site else None)]
        stack[0].line = site.line if site else 0
    elif site is not None and site.frame is not stack[0].caller:
        stack[0].within, stack[0].within_line = site.frame, site.line
    stack[0].state = "raised"
    return stack


def _calls(spots: list[Spot]) -> Iterator[tuple[FrameType, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    frame = spots[-1].frame.f_back if spots else None
    frames = [spot.frame for spot in spots]
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    for one in frames:
        if _is_call(one):
            module, args, kwargs = called_module(one)
            if not is_wrapper(module):
                yield one, module, args, kwargs
