"""Write a core file: the contents of a stop, the most useful first, up to a number of bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from layerstep._torch.tensors import is_tensor
from layerstep.calls.backward import Call
from layerstep.calls.stack import Frame
from layerstep.corefile.container import SUFFIX, write_file
from layerstep.corefile.environment import environment, exception_text, modes_now
from layerstep.corefile.sources import Sources
from layerstep.corefile.streams import Streams
from layerstep.corefile.tensors import TensorTable
from layerstep.corefile.tree import Modules, own_tensors
from layerstep.corefile.values import ValueEncoder, without_home
from layerstep.engine.pause import Pause
from layerstep.errors import UserError
from layerstep.side_effects.guard import undisturbed
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["MOST_BYTES", "Core", "CoreWritten", "collect", "path_for", "write_core"]

MOST_BYTES = 512 << 20
MOST_LOCALS = 64


@dataclass(frozen=True, slots=True)
class CoreWritten:
    """A file that was written: where, how large, what it holds and what it does not."""

    path: Path
    nbytes: int
    holds: tuple[tuple[str, int, int], ...]
    """(name, how many, bytes) of each part."""
    left_out: tuple[str, ...]


def path_for(path: Path, name: str = "") -> Path:
    """The path of the file; in a directory, it is named after the module and the process."""
    if os.path.isdir(path):
        words = "-".join(filter(None, ("core", name.replace("|", "-").replace("<", "").replace(">", ""))))
        path = path / f"{words}-{os.getpid()}"
        return path.with_name(path.name + SUFFIX)
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def write_core(session: Session, path: Path, *, most: int = MOST_BYTES) -> CoreWritten:
    """Write the stop of a session to a file. Replaces an existing file, whole or not at all."""
    core = collect(session, most=most)
    pause = session.run.pause
    frame = pause.frame if pause is not None else None
    path = path_for(Path(path), frame.path if frame is not None else "")
    with session.run.evaluating(), observing():
        segments = core.tensors.segments()
        core.contents["tensors"] = core.tensors.entries
        size = write_file(path, core.contents, segments)
    return CoreWritten(path, size, tuple(core.holds), tuple(core.left_out))


def collect(session: Session, *, most: int = MOST_BYTES) -> Core:
    """Collect the contents of a file by reference. Copies nothing yet."""
    pause = session.run.pause
    if pause is None or not pause.stack:
        raise UserError("nothing has stopped yet", "a core file holds a stop")
    modes = modes_now()  # before ours are on
    with session.run.evaluating(), undisturbed(session.run.models, deep=False), observing():
        core = Core(session, pause, most)
        core.contents["modes"] = modes
        core.fill()
    return core


class Core:
    """The contents of a file, as they are collected."""

    def __init__(self, session: Session, pause: Pause, most: int) -> None:
        self._session, self._pause, self._most = session, pause, most
        self._stack = [frame for frame in pause.stack if frame.op is None]
        """The module calls. A file does not hold an operation in one."""
        self._selected = self._stack.index(pause.frame) if pause.frame in self._stack else 0
        self.tensors = TensorTable()
        self.sources = Sources()
        self.modules = Modules(session.run.models)
        for frame in self._stack:
            if frame.module is not None:
                self.modules.add(frame.module)
        self.values = ValueEncoder(self.tensors, self.modules.number_of)
        self.contents: dict[str, Any] = {}
        self._parts: dict[tuple[str, bool], list[int]] = {}

    def fill(self) -> None:
        session, pause, contents = self._session, self._pause, self.contents
        contents["random"] = Streams().encode(self.values.encode)
        contents["stack"] = self._frames()
        contents["calls"] = list(self._calls())
        contents["recordings"] = list(self._recordings())
        self._locals()
        contents["tree"] = self.modules.encode(self.values, self.sources)
        contents["stop"] = self._stop()
        error = pause.stop.error
        contents["exception"] = exception_text(error) if error is not None else None
        contents["history"] = [without_home(line)[:500] for line in session.prompt.history[-200:]]
        contents["points"] = [
            {"line": without_home(point.line())[:500], "hits": point.hits, "number": point.number}
            for point in session.points.shown
        ]
        contents["environment"] = environment()
        contents["sources"] = self.sources.encode()
        contents["left_out"] = self.left_out

    def _section(self, name: str, encode: Callable[[bool], Any]) -> Any:
        """Add a part of the file, with the values of its tensors if there is room for all of them."""
        mark, before = self.tensors.mark(), self.tensors.nbytes
        encoded = encode(True)
        size = self.tensors.nbytes
        fits = size <= self._most
        parts = self._parts.setdefault((name, fits), [])
        parts.append(size - before)
        if fits:
            return encoded
        self.tensors.take_back(mark)
        return encode(False)

    @property
    def nbytes(self) -> int:
        """About how many bytes the file will take, without its description."""
        return self.tensors.nbytes

    @property
    def holds(self) -> list[tuple[str, int, int]]:
        """(name, how many, bytes) of each part that is in the file; shared memory counts in the first."""
        return [(name, len(sizes), sum(sizes)) for (name, fits), sizes in self._parts.items() if fits]

    @property
    def left_out(self) -> list[str]:
        """The values that found no room or could not be read: the file has only their shapes."""
        room = [f"{name}, {sum(sizes):,} bytes" for (name, fits), sizes in self._parts.items() if not fits]
        return room + self.tensors.unread

    def _stop(self) -> dict[str, Any]:
        pause, session = self._pause, self._session
        frame = pause.frame
        assert frame is not None
        owner = session.run.models.owner_of(frame.module) if frame.module is not None else None
        local = (
            owner.names.paths_of(frame.module)[:1] if owner is not None and frame.module is not None else []
        )
        return {
            "selected": self._selected,
            "phase": pause.phase.value if pause.phase is not None and not pause.phase.is_op else None,
            "reason": pause.reason,
            "trouble": without_home(pause.stop.trouble),
            "forward": pause.forward,
            "step": session.run.training.count,
            "model": owner.name if owner is not None else "",
            "local": local[0] if local else None,
            "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        }

    # --- the stack: the selected call first, then its state, then what it was called in ---

    def _frames(self) -> list[dict[str, Any]]:
        stack = self._stack
        frames = [self._frame(frame) for frame in stack]
        chosen, outer = self._selected, len(frames) - 1
        self._fill(frames[chosen], stack[chosen], "inputs and output")
        if (module := stack[chosen].module) is not None:
            self._section(f"state of {stack[chosen].path}", partial(self._state, module))
        if outer != chosen:
            self._fill(frames[outer], stack[outer], "batch")
        for index, frame in enumerate(stack):
            if index not in (chosen, outer):
                self._fill(frames[index], frame, "calls around it")
        return frames

    def _frame(self, frame: Frame) -> dict[str, Any]:
        return {
            "module": self.modules.number_of(frame.module) if frame.module is not None else None,
            "path": frame.path,
            "state": frame.state,
            "depth": frame.depth,
            "hooked": frame.hooked,
            "caller": self.sources.site(frame.caller, frame.line) if frame.caller is not None else None,
            "within": self.sources.site(frame.within, frame.within_line)
            if frame.within is not None
            else None,
        }

    def _fill(self, entry: dict[str, Any], frame: Frame, name: str) -> None:
        def encode(keep: bool) -> dict[str, Any]:
            found = {
                "args": self.values.encode(tuple(frame.args), "args", keep=keep),
                "kwargs": self.values.encode(dict(frame.kwargs), "kwargs", keep=keep),
            }
            if frame.has_output:
                found["output"] = self.values.encode(frame.output, "out", keep=keep)
            if frame.call is not None:
                found["call"] = self._call(frame.call, keep=keep)
            return found

        entry |= self._section(name, encode)

    def _call(self, call: Call, *, keep: bool) -> dict[str, Any]:
        return {
            "forward": call.forward,
            "state": call.state.value,
            "made_at": self.sources.line(*call.made_at) if call.made_at[0] else None,
            "grad_out": self.values.encode(list(call.grad_out), "grad_out", keep=keep),
            "grad_in": self.values.encode(list(call.grad_in), "grad_in", keep=keep),
        }

    def _state(self, module: torch.nn.Module, keep: bool) -> None:
        """Add the parameters and buffers of a module and its parts; the tree refers to them."""
        for name, part in module.named_modules():
            parameters, buffers = own_tensors(part)
            for own, tensor in (*parameters.items(), *buffers.items()):
                if is_tensor(tensor):
                    self.tensors.add(tensor, f"state.{name}.{own}" if name else f"state.{own}", keep=keep)

    # --- what was passed, and what was recorded ---

    def _calls(self) -> Iterator[dict[str, Any]]:
        seen: set[int] = set()
        for _, module in self._session.run.models.everything():
            kept = self._session.run.seen_calls.get(module)
            if kept is None or id(module) in seen:
                continue
            seen.add(id(module))
            values = self._section("calls that were passed", partial(self._passed, kept))
            yield {"module": self.modules.number_of(module), "values": values}

    def _passed(self, kept: tuple[Any, Any, Any], keep: bool) -> Any:
        args, kwargs, output = kept
        return self.values.encode((tuple(args), dict(kwargs or {}), output), "call", keep=keep)

    def _recorded(self, value: Any, keep: bool) -> Any:
        return self.values.encode(value, "recorded", keep=keep)

    def _named(self, found: dict[str, Any], keep: bool) -> dict[str, Any]:
        return {name: self.values.encode(value, name, keep=keep) for name, value in found.items()}

    def _recordings(self) -> Iterator[dict[str, Any]]:
        for entry in self._session.run.recordings.everything():
            value = self._section(
                "recordings",
                partial(self._recorded, entry.value),
            )
            yield {
                "path": entry.path,
                "forward": entry.forward,
                "facts": self.values.encode(entry.facts, "facts"),
                "value": value,
                "nbytes": entry.nbytes,
            }

    def _locals(self) -> None:
        """Add the variables of the calling functions: tensors, numbers and short words."""
        for entry, frame in zip(self.contents["stack"], self._stack, strict=True):
            for name, python in (("caller", frame.caller), ("within", frame.within)):
                if python is not None and (found := _variables(python)):
                    entry[name]["locals"] = self._section("variables", partial(self._named, found))


def _variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a function. A script is left out: its variables are all that it has."""
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return {}
    found = {
        name: value
        for name, value in frame.f_locals.items()
        if name.isidentifier() and name != "self" and _is_simple(value)
    }
    return dict(list(found.items())[:MOST_LOCALS])


def _is_simple(value: Any, depth: int = 2) -> bool:
    if is_tensor(value) or value is None or type(value) in (bool, int, float, torch.Size, torch.dtype):
        return True
    if type(value) is str:
        return len(value) <= 100 and os.sep not in value
    if depth and type(value) in (tuple, list):
        return len(value) <= 16 and all(_is_simple(item, depth - 1) for item in value)
    return False
