"""The module stack at a pause, rebuilt from Python frames: nothing is tracked while the model runs."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import (
    call_frames,
    called_module,
    entered_with_hooks,
    has_met_wrappers,
    is_wrapper,
    module_call_code,
    module_file,
)
from layerstep.engine.backward import Call, State
from layerstep.engine.events import Event, Phase
from layerstep.engine.models import Models

if TYPE_CHECKING:
    from layerstep.engine.operations import Op
    from layerstep.engine.overwritten_inputs import Overwritten

__all__ = [
    "OURS",
    "Frame",
    "backward_stack",
    "build_stack",
    "call_depth",
    "call_text",
    "caller_of",
    "forget_locals",
    "function_label",
    "is_deeper",
    "is_library_file",
    "is_ours",
    "is_program_file",
    "location_at",
    "location_of",
]

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMO = os.path.join(OURS, "demo", "")
"""The demo is a user's program, though it lies among our files."""
_DYNAMO = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(module_file))), "_dynamo", "")
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(os.path.dirname(_DYNAMO)) + os.sep)
_SITE = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
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


def is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(OURS) and not file.startswith(_DEMO)


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """Is this a file of Python's own library or of an installed package, wherever that is installed?"""
    return file.startswith(_LIBRARIES) or _SITE.search(file) is not None


def is_program_file(file: str) -> bool:
    """Is this a file of the program itself: of no library, not even of Python's own?"""
    if not file or is_library_file(file):
        return False
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    return not file.startswith(OURS) or file.startswith(_DEMO)


def caller_of(frame: FrameType) -> FrameType | None:
    """The frame that called the module of this call frame: past torch's `__call__`, its class's and ours."""
    found = frame.f_back
    while found is not None and (_is_machinery(found) or is_ours(found)):
        found = found.f_back
    return found


def _is_machinery(frame: FrameType) -> bool:
    """Frames between a call and its module: torch's `__call__`, an override of it, the compiler's wrapper."""
    code = frame.f_code
    return code.co_filename.startswith((module_file, _DYNAMO)) or code.co_name == "__call__"


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


def call_text(frame: FrameType) -> str:
    """The exact text of the call that a frame is in the middle of."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last != first or start is None or end is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first)
    return line.encode()[start:end].decode(errors="replace")


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


def location_of(frame: FrameType) -> str:
    """`model.py:41  x = self.attn(x)`: where a frame is, and the text of the line."""
    return location_at(frame.f_code.co_filename, frame.f_lineno)


def location_at(file: str, line: int) -> str:
    """The same for a place that is known by its file and line; empty if it is not."""
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}  {text}".rstrip() if file else ""


def function_label(frame: FrameType) -> str:
    """`train()`, `Net.forward()`, or the name of the file at its top level."""
    code = frame.f_code
    if code.co_name == "<module>":
        return os.path.basename(code.co_filename)
    return f"{code.co_qualname.replace('<locals>.', '')}()"


def forget_locals(frame: FrameType) -> None:
    """Drop the copy of a frame's locals that looking at them left behind.

    Up to Python 3.12 `frame.f_locals` is a snapshot which the frame keeps: it would hold tensors
    alive that the function has let go of. Frames of modules and classes have no snapshot, their
    `f_locals` is the namespace itself and must not be touched. Nor must a snapshot that the function holds
    itself: `locals()` hands out the same dictionary.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    if threading.gettrace() is not None and not _is_running_here(frame):
        return  # Python may be about to write the snapshot back in that thread, after a trace function
    snapshot = frame.f_locals
    if isinstance(snapshot, dict) and sys.getrefcount(snapshot) <= _REFERENCES:
        snapshot.clear()


def _is_running_here(frame: FrameType) -> bool:
    here: FrameType | None = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None


_REFERENCES = 3  # the frame's own, the variable `snapshot`, the argument of getrefcount
