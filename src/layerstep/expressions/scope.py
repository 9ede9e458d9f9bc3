"""Names at the prompt and in conditions.

`inp`, `kwargs`, `out`, `mod`, `name`, `model`, `forward`, `step`, `grad_in`, `grad_out`, `$1`…, module paths
with `.input`, `.output` and every attribute of the module, the paused frame's own locals and globals, then
those of the functions around it. At a stop at a line the frame's own names come first.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from layerstep._torch import unwrap
from layerstep.calls.backward import State
from layerstep.calls.stack import Frame
from layerstep.errors import UnknownPath, UserError
from layerstep.expressions.expression import (
    PAST_NAME,
    PATH_NAME,
    RESULTS_NAME,
    UNREADABLE,
    reason_of,
    rewrite,
)
from layerstep.expressions.outer_names import MISSING, find_outside, names_outside, running_loss
from layerstep.expressions.recordings import Recordings
from layerstep.expressions.seen_values import Results, SeenCalls
from layerstep.imports import their_imports
from layerstep.module_paths.models import Models
from layerstep.process.interrupts import is_from_a_signal
from layerstep.training_steps.steps import Steps

__all__ = [
    "SPECIAL_NAMES",
    "EvaluationFailed",
    "PathRef",
    "Scope",
    "run_python",
    "stdout_of_this_thread",
]

MOST_CHARACTERS = 2_000
"""An error of the user's is shown no longer than this."""

SPECIAL_NAMES = ("inp", "kwargs", "out", "mod", "name", "model", "forward", "step", "grad_in", "grad_out")


def _last_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"
    try:
        return traceback.format_exception_only(type(error), error)[-1].strip()[:MOST_CHARACTERS]
    except Exception:  # the user's class of errors cannot be printed
        return type(error).__name__


class EvaluationFailed(UserError):
    """The user's own expression raised; the message is its last line."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(_last_line(error))
        self.error = error


class PathRef:
    """A module path in an expression; it becomes the module as soon as it cannot grow longer."""

    __slots__ = ("_scope", "_text")

    def __init__(self, scope: Scope, text: str) -> None:
        self._scope = scope
        self._text = text

    def __getattr__(self, name: str) -> Any:
        longer = f"{self._text}.{name}"
        if self._scope.models.ending_in(longer) or self._scope.models.at(longer) is not None:
            return PathRef(self._scope, longer)
        module = self.module
        if name in ("input", "kwargs", "output"):
            return self._scope.seen(module, name, self._text)
        return getattr(module, name)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index >= 0:
            return self.__getattr__(str(index))
        return self.module[index]  # type: ignore[index]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.module)

    @property
    def module(self) -> nn.Module:
        return self._scope.models.find(self._text)[1]


class Scope(dict[str, Any]):
    """The namespace of one place in the run. Missing names are looked up when asked for.

    It is the globals and the locals of what it evaluates: comprehensions and functions typed at
    the prompt see the same names. Assignments stay in it and never reach the run.
    """

    def __init__(
        self,
        models: Models,
        frame: Frame | None,
        *,
        kept: SeenCalls | None = None,
        results: Results | None = None,
        recordings: Recordings | None = None,
        training: Steps | None = None,
    ) -> None:
        super().__init__()
        self.models = models
        self.frame = frame
        self.stack: list[Frame] = []
        self.kept = kept
        self.recordings = recordings
        self.training = training
        self.has_looked = False
        """Were the caller's locals read? Then its frame holds a snapshot of them."""
        self.borrowed: dict[str, str] = {}
        """Names that were found in a function further out, and where; for the answer to say so."""
        self.globals: dict[str, Any] | None = None
        """The program's own, after its end."""
        self[RESULTS_NAME] = results
        self["__name__"] = "__layerstep__"

    def __missing__(self, key: str) -> Any:
        if key == PATH_NAME:
            return self.path  # kept in the dictionary it would be a cycle, and hold tensors
        if key == PAST_NAME:
            return self.past
        value = self._nearby(key)
        if value is not MISSING:
            return value
        found = find_outside(key, self._caller)
        if found is not None:
            self.borrowed[key] = found.origin
            return found.value
        if self.globals is not None and key in self.globals:
            return self.globals[key]
        if key in SPECIAL_NAMES:
            return self._special(key)  # it says what is missing
        value = self._of_training(key)
        if value is MISSING:
            raise KeyError(key)
        return value

    def _nearby(self, key: str) -> Any:
        """A name of this function, of the debugger, or of a module; `MISSING` if it is none."""
        is_special = key in SPECIAL_NAMES
        caller = self._caller
        is_at_line = self.frame is not None and self.frame.at_line
        if caller is not None and (is_at_line or not is_special):
            self.has_looked = True
            if key in (local := caller.f_locals):
                return local[key]
            if key in caller.f_globals:
                return caller.f_globals[key]
        if is_special:
            return self._special(key) if self._is_at_hand(key) else MISSING
        if key == "torch":
            return torch
        return PathRef(self, key) if self.models.ending_in(key) else MISSING

    @property
    def _caller(self) -> FrameType | None:
        return self.frame.python if self.frame is not None else None

    def _is_at_hand(self, key: str) -> bool:
        if key == "model":
            return self.models.main is not None
        return key in ("step", "forward") or (self.frame is not None and self.frame.module is not None)

    def _of_training(self, key: str) -> Any:
        """`lr` and `loss` where no function has such a name."""
        if key == "loss":
            return running_loss(sys._getframe())
        first = self.training.optimizers[:1] if self.training is not None and key == "lr" else []
        optimizer = first[0].optimizer if first else None
        if optimizer is None:
            return MISSING
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
        return rates[0] if len(set(map(float, rates))) == 1 else rates

    def knows(self, key: str) -> bool:
        """Would this name be found, paths and builtins aside?"""
        if key in self or key in SPECIAL_NAMES or key in (self.globals or {}):
            return True
        caller = self._caller
        if caller is None:
            return False
        return key in caller.f_locals or key in caller.f_globals or find_outside(key, caller) is not None

    def names(self) -> list[str]:
        """What can be typed here, for completion."""
        caller = self._caller
        own = [key for key in (*self, *(self.globals or {})) if not key.startswith("__")]
        local = [key for key in caller.f_locals if key.isidentifier()] if caller is not None else []
        return [*SPECIAL_NAMES, *own, *local, *names_outside(caller)]

    def path(self, name: str) -> Any:
        """The first segment of a path that has numbers in it: a path if there is one, else the name."""
        if self.models.ending_in(name):
            return PathRef(self, name)
        try:
            return self[name]
        except KeyError:
            raise self.models.unknown(name) from None

    def past(self, name: str, back: int) -> Any:
        """`out@-1`, `h.0.attn@-2`: an output as it was recorded in an earlier forward."""
        path = name.removesuffix(".output")
        if name == "out":
            path = str(self["name"]).partition("|")[0]
        path, module = self.models.find(path)
        owner = self.models.owner_of(module)
        if self.recordings is None:
            raise UnknownPath(f"nothing of {path} is recorded here")
        forward = owner.forwards if owner is not None else 0
        return self.recordings.value_before(path, forward=forward, back=back)

    def _special(self, key: str) -> Any:
        main = self.models.main
        if key == "model":
            owner = self._owner()
            return owner.root if owner is not None else (main.root if main is not None else None)
        if key == "step":
            return self.training.count if self.training is not None else 0
        if key == "forward":
            owner = self._owner() or main
            return owner.forwards if owner is not None else 0
        frame = self.frame
        if frame is None or frame.module is None:
            raise UserError(f"{key}: no module is running here", "`continue` to a stop, or `up`")
        if key in ("grad_in", "grad_out"):
            return self._gradient(key, frame)
        if frame.call is not None and frame.op is None and key in ("inp", "kwargs", "out"):
            what = {"inp": "input", "out": "output"}.get(key, key)
            return self.seen(frame.module, what, frame.path)
        if key == "out" and not frame.has_output:
            raise UserError(f"out: {frame.path} has not finished", "`finish` runs to its end")
        attribute = {"out": "output", "mod": "module", "name": "path"}.get(key, key)
        return getattr(frame, attribute)

    @staticmethod
    def _gradient(key: str, frame: Frame) -> Any:
        """The value itself if there is one, else the tuple of them, as `inp` has it."""
        if frame.call is None:
            raise UserError(f"{key}: there is no gradient in the forward", f"`break {frame.path} backward`")
        if key == "grad_in" and frame.call.state is not State.DONE:
            raise UserError(f"grad_in of {frame.path} is not complete yet", "`finish` runs until it is")
        values = tuple(getattr(frame.call, key))
        return values[0] if len(values) == 1 else values

    def _owner(self) -> Any:
        if self.frame is None or self.frame.module is None:
            return None
        return self.models.owner_of(self.frame.module)

    def seen(self, module: nn.Module, what: str, path: str) -> Any:
        """The input or output of a module as last seen in this forward."""
        calls = (f for f in self.stack if f.call is None and f.op is None)
        running = next((f for f in calls if f.module is module), None)
        if running is not None:
            if what == "output" and not running.has_output:
                raise UserError(f"{path} has not finished", "`finish` runs to its end")
            return {"input": running.inp, "kwargs": running.kwargs, "output": running.output}[what]
        call = self.kept.get(unwrap(module)) if self.kept is not None else None
        if call is None:
            raise UnknownPath(
                f"{path}.{what} was not kept",
                "stop there or step over it first; only what is passed so is kept",
            )
        args, kwargs, output = call
        if what == "input":
            return args[0] if len(args) == 1 else args
        return kwargs if what == "kwargs" else output


class _Routed(io.TextIOBase):
    """A stdout that keeps what one thread writes and passes on what the others do."""

    def __init__(self, owner: int, through: Any) -> None:
        self.owner = owner
        self.through = through
        self.kept = io.StringIO()

    def write(self, text: str) -> int:
        target = self.kept if threading.get_ident() == self.owner else self.through
        return int(target.write(text))

    def flush(self) -> None:
        self.through.flush()


@contextlib.contextmanager
def stdout_of_this_thread() -> Iterator[io.StringIO]:
    routed = _Routed(threading.get_ident(), sys.stdout)
    before, sys.stdout = sys.stdout, routed
    try:
        yield routed.kept
    finally:
        sys.stdout = before


def run_python(
    text: str, scope: Scope, *, wrap: Callable[[], Any] = contextlib.nullcontext
) -> tuple[Any, str]:
    """Evaluate or execute a text in a scope: the value (None for statements) and what it printed."""
    source = rewrite(text)
    try:
        try:
            code, is_value = compile(source, "<prompt>", "eval"), True
        except SyntaxError:
            code, is_value = compile(source, "<prompt>", "exec"), False
    except (RecursionError, MemoryError) as error:
        raise UserError(f"this line is no Python: {reason_of(error)}") from None
    except UNREADABLE as error:
        raise EvaluationFailed(error) from None
    with stdout_of_this_thread() as printed, their_imports(), wrap():
        try:
            value = eval(code, scope)
        except UserError:
            raise
        except Exception as error:
            if is_from_a_signal(error):
                raise
            raise EvaluationFailed(error) from error
    if isinstance(value, PathRef):
        value = value.module
    return (value if is_value else None), printed.getvalue()
