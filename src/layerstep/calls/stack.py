"""The module stack at a pause, rebuilt from Python frames: nothing is tracked while the model runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import (
    call_frames,
    called_module,
    entered_with_hooks,
    has_met_wrappers,
    is_wrapper,
    module_call_code,
)
from layerstep.calls.backward import Call, State
from layerstep.calls.events import Event, Phase
from layerstep.calls.operations import Op
from layerstep.calls.overwritten_inputs import Overwritten
from layerstep.module_paths.models import Models
from layerstep.process.frames import (
    call_text,
    caller_of,
    function_label,
    is_ours,
    is_program_file,
    location_at,
    location_of,
    starts_program,
)

__all__ = ["Frame", "backward_stack", "build_stack", "call_depth", "is_deeper", "line_stack"]

_NOTHING = object()


class Frame:
    """One module call on the stack. `caller` is the Python frame that made the call."""

    __slots__ = (
        "_models",
        "_path",
        "args",
        "at_line",
        "call",
        "caller",
        "depth",
        "hooked",
        "kwargs",
        "line",
        "module",
        "op",
        "output",
        "overwritten",
        "state",
        "within",
        "within_line",
    )

    def __init__(
        self,
        models: Models,
        module: nn.Module | None,
        *,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        state: str = "running",
        output: Any = _NOTHING,
        caller: FrameType | None = None,
        depth: int = 0,
        hooked: bool = True,
        call: Call | None = None,
        op: Op | None = None,
    ) -> None:
        self._models = models
        self._path: str | None = None
        self.module = module
        self.args = args
        self.kwargs = kwargs or {}
        self.state = state
        self.output = output
        self.caller = caller
        self.depth = depth
        self.hooked = hooked
        self.call = call
        """At a stop in the backward pass: the call that it is at."""
        self.op = op
        """At a stop after an operation, on top of the modules: that operation, which ran in this module."""
        self.overwritten: tuple[Overwritten, ...] = ()
        """At the exit of a call: the inputs that it has written to in place."""
        self.line = 0
        """Where the caller was at an exception; 0: where it is."""
        self.within: FrameType | None = None
        """At an exception or a line: the frame of the user's code that runs here, and at which line."""
        self.within_line = 0
        self.at_line = False
        """At a stop at a line the names of the function go before `inp`, `out` and the like."""

    @property
    def path(self) -> str:
        """The path of the module; of a shared one, that by which it was called here."""
        if self._path is None:
            self._path = self._find_path()
        return self._path

    @path.setter
    def path(self, path: str) -> None:
        self._path = path

    def _find_path(self) -> str:
        if self.module is None:
            return function_label(self.within) if self.at_line and self.within is not None else ""
        paths = self._models.paths_of(self.module)
        if len(paths) > 1 and self.caller is not None:
            name = _called_name(self.caller)
            by_name = [path for path in paths if path.rpartition(".")[2] == name]
            paths = by_name or paths
        return "|".join(paths) if paths else self._models.path_of(self.module)

    @property
    def python(self) -> FrameType | None:
        """The Python frame whose variables are seen from here."""
        return self.within if self.within is not None else self.caller

    @property
    def location(self) -> str:
        """The line that made the call; at a stop at a line, the line that it is at."""
        if self.at_line and self.within is not None:
            return location_of(self.within)
        if self.caller is None:
            return ""
        return location_at(self.caller.f_code.co_filename, self.line or self.caller.f_lineno)

    @property
    def has_output(self) -> bool:
        return self.output is not _NOTHING

    @property
    def inp(self) -> Any:
        """The positional input: the value itself if there is one, else the tuple of them."""
        return self.args[0] if len(self.args) == 1 else self.args


def call_depth(frame: FrameType | None) -> int:
    """How many module calls are running here. The innermost one counts, a wrapper's does not.

    To tell a wrapper, the locals of each frame must be read, which takes longer than all the rest.
    """
    return sum(1 for _ in (_real_calls(frame) if has_met_wrappers() else call_frames(frame)))


def is_deeper(frame: FrameType | None, depth: int) -> bool:
    """Are more module calls than `depth` running here? It looks no further than it must."""
    if has_met_wrappers():
        return call_depth(frame) > depth
    while frame is not None:
        if frame.f_code is module_call_code:
            if depth <= 0:
                return True
            depth -= 1
        frame = frame.f_back
    return False


def build_stack(
    frame: FrameType | None, models: Models, *, event: Event | None, until: FrameType | None = None
) -> list[Frame]:
    """The module calls that are running, innermost first; an event's own module leads.

    `until`: the frame below which they are looked for. What lies above it is the run, this a second one.
    """
    calls = list(_real_calls(frame, until))
    depth = len(calls)
    stack = []
    for index, (call, module, args, kwargs) in enumerate(calls):
        entry = Frame(
            models,
            module,
            args=args,
            kwargs=kwargs,
            caller=caller_of(call),
            depth=depth - index,
            hooked=entered_with_hooks(call),
        )
        if event is not None and index == 0:
            entry.args, entry.kwargs = event.args, event.kwargs
            entry.state = "entering" if event.phase is Phase.ENTER else "done"
            if event.phase is Phase.EXIT:
                entry.output = event.output
        stack.append(entry)
    return stack


def backward_stack(call: Call, models: Models, *, phase: Phase) -> list[Frame]:
    """The call that the backward pass is at, and those that it was made in."""
    words = {State.WAITING: "backward to come", State.ENTERED: "in backward", State.DONE: "backward done"}
    stack = [Frame(models, c.module, state=words[c.state], depth=c.depth, call=c) for c in call.stack()]
    stack[0].state = "backward done" if phase is Phase.BACKWARD else "backward entered"
    return stack


def _real_calls(
    frame: FrameType | None,
    until: FrameType | None = None,
) -> Iterator[tuple[FrameType, nn.Module, tuple[Any, ...], dict[str, Any]]]:
    for call in call_frames(frame, until):
        module, args, kwargs = called_module(call)
        if not is_wrapper(module):
            yield call, module, args, kwargs


def _called_name(frame: FrameType) -> str:
    """`b` for a frame that is in the middle of `self.b(x)`."""
    try:
        call = ast.parse(call_text(frame), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def line_stack(frame: FrameType, models: Models) -> list[Frame]:
    """What runs at a line, innermost first: a frame for each function, or for the module that it runs for.

    The innermost function is on it, whoever wrote it; further out, only those of the program.
    """
    modules = build_stack(frame, models, event=None)
    stack: list[Frame] = []
    between: list[FrameType] = []
    waiting = list(modules)
    here: FrameType | None = frame
    while here is not None and not starts_program(here):
        is_shown = here is frame or is_program_file(here.f_code.co_filename)
        if waiting and here is waiting[0].caller:
            stack += _group(between, waiting.pop(0), models, depth=len(waiting) + 1)
            between = []
            while waiting and waiting[0].caller is here:
                stack.append(waiting.pop(0))
        if is_shown and not is_ours(here):
            between.append(here)
        here = here.f_back
    return [*stack, *(_function(each, models, depth=0) for each in between)]


def _group(frames: list[FrameType], module: Frame, models: Models, *, depth: int) -> list[Frame]:
    """The functions that run in a module call: the outermost of them is its forward, or a hook."""
    if frames:
        module.within, module.within_line, module.at_line = frames[-1], frames[-1].f_lineno, True
    return [*(_function(each, models, depth=depth) for each in frames[:-1]), module]


def _function(frame: FrameType, models: Models, *, depth: int) -> Frame:
    entry = Frame(models, None, depth=depth)
    entry.within, entry.within_line, entry.at_line = frame, frame.f_lineno, True
    return entry
