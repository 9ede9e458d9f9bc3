"""Find the models of a script as they are called: the user edits nothing.

`nn.Module.__call__` is replaced by the same function with one look-up more (`_torch/outermost_calls.py`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

from layerstep._torch import is_replica, is_tracing, unwrap
from layerstep._torch.compiling import is_compilers_graph
from layerstep._torch.outermost_calls import ThreadInCall, reporting_call
from layerstep.process.frames import call_text, caller_of, forget_locals, is_library_file, is_ours

__all__ = ["Discovery", "name_of", "owner_of"]


class Discovery:
    """Reports every outermost module call: `arrived(module, frame, is_new)`, before it runs.

    Where one is left by an exception, `raised(error)` is called before any handler.
    A module that is called by itself though it is a part of a model is reported once, as that model.
    """

    def __init__(
        self,
        arrived: Callable[[nn.Module, FrameType, bool], None],
        raised: Callable[[BaseException], None] = lambda error: None,
        is_silent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._arrived = arrived
        self._raised = raised
        self._is_silent = is_silent
        """Is this call ours? Then it must not count as the first of its model."""
        self._thread = ThreadInCall()
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._wrappers: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}
        """By the id of a module: it, and the wrapper of a library that it was first called through."""
        self.is_on = False
        self._before: Any = None
        self._stand_in: Any = None

    def start(self) -> None:
        """Begin to look; once."""
        if self.is_on:
            return
        self._before = before = nn.Module.__call__
        self.is_on = True
        stand_in: Any = reporting_call(before, self._announce, self._has_raised, thread=self._thread)
        self._stand_in = nn.Module.__call__ = stand_in  # type: ignore[method-assign]

    def stop(self) -> None:
        """Put back the `__call__` that was there.

        One that a library has put over ours since stays. It calls ours, which then does nothing.
        """
        self.is_on = False
        if self._stand_in is not None and nn.Module.__call__ is self._stand_in:
            nn.Module.__call__ = self._before  # type: ignore[method-assign]
            self._before = self._stand_in = None

    def _has_raised(self, error: BaseException) -> None:
        if self.is_on:
            self._raised(error)

    def _announce(self, module: nn.Module, frame: FrameType) -> None:
        if not self.is_on:
            self.stop()  # who was over ours has gone
            return
        if is_tracing() or is_replica(module) or self._is_silent():
            return
        if not hasattr(module, "_modules"):  # its __init__ did not call that of nn.Module: torch will say so
            return
        known = self._known.get(id(module))
        if known is not None and known() is module:
            self._arrived(module, frame, False)
            return
        inner = self._inside_passing_wrapper(module)
        if inner is not None:
            is_new = id(inner) not in self._known or self._known[id(inner)]() is not inner
            self._known[id(inner)] = weakref.ref(inner)
            self._arrived(inner, frame, is_new)
            return
        self._known[id(module)] = weakref.ref(module)
        if is_compilers_graph(module, frame):
            return
        owner = owner_of(module, frame)
        if owner is None:
            self._arrived(module, frame, True)
        elif id(owner) not in self._known or self._known[id(owner)]() is not owner:
            self._known[id(owner)] = weakref.ref(owner)
            self._arrived(owner, frame, True)

    def _inside_passing_wrapper(self, module: nn.Module) -> nn.Module | None:
        """The model in a wrapper that a library puts around it for one call, as an ODE solver does.

        That it comes and goes shows at the second one around the same model: the first is taken for a model.
        """
        inner = _inside_wrappers(module)
        if inner is module:
            return None
        first = self._wrappers.get(id(inner))
        if first is None or first[0]() is not inner:
            self._wrappers[id(inner)] = weakref.ref(inner), weakref.ref(module)
            return None
        return inner if first[1]() is not module else None


def _inside_wrappers(module: nn.Module) -> nn.Module:
    """What the wrappers of a library, which hold nothing else, pass their call to."""
    while len(module._modules) == 1 and not (module._parameters or module._buffers):
        kind = type(module).__module__
        (child,) = module._modules.values()
        file = getattr(sys.modules.get(kind), "__file__", None) or ""
        if child is None or kind.partition(".")[0] == "torch" or not is_library_file(file):
            break
        module = child
    return module


def _user_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames outside of installed libraries, innermost first."""
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if not (is_ours(frame) or is_library_file(file) or file.startswith("<frozen")):
            found.append(frame)
        frame = frame.f_back
    return found


def owner_of(module: nn.Module, frame: FrameType) -> nn.Module | None:
    """The model that a module called by itself belongs to: `model` in `model.encoder(x)`.

    A model whose class overrides `__call__` runs unseen, and only a part deep inside it may call torch's.
    """
    caller = caller_of(frame)
    if caller is None:
        return None
    unseen = _unseen_calls(caller)
    values = [value for value in caller.f_locals.values() if isinstance(value, nn.Module)]
    forget_locals(caller)
    owners = [
        value
        for value in (*values, *unseen)
        if value is not module and any(part is module for part in value.modules())
    ]
    return max(owners, key=lambda owner: sum(1 for _ in owner.modules()), default=None)


def _unseen_calls(frame: FrameType | None) -> list[nn.Module]:
    """The modules around this frame whose class runs a `__call__` of its own instead of torch's."""
    found = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__call__" and code.co_argcount and not is_ours(frame):
            called = frame.f_locals.get(code.co_varnames[0])
            forget_locals(frame)
            if isinstance(called, nn.Module) and hasattr(called, "_modules"):
                found.append(called)
        frame = frame.f_back
    return found


def name_of(module: nn.Module, frame: FrameType) -> str:
    """What the script calls a model: its variable or attribute where one can be seen, else its class.

    The outermost name wins: `evaluate(model)` calls every model so, while `generator` and `judge` are told
    apart where they were made, whichever runs first.
    """
    users = _user_frames(frame)
    for user in reversed(users):
        name = _name_in(user, module)
        if name:
            return name
    inner = unwrap(module)
    for name, value in list(
        vars(sys.modules["__main__"]).items()
    ):  # `Thread(target=model)` has no other frame
        if isinstance(value, nn.Module) and unwrap(value) is inner:
            return name
    caller = frame if users[:1] == [frame] else caller_of(frame)
    text = call_text(caller).partition("(")[0] if caller is not None else ""
    name = text.rpartition(".")[2]
    is_name = name.isidentifier() and name != "self" and not name.startswith("_")
    return name if is_name else type(inner).__name__


def _name_in(frame: FrameType, module: nn.Module) -> str:
    inner = unwrap(module)
    names = frame.f_locals
    try:
        for name, value in list(names.items()):
            if isinstance(value, nn.Module) and name != "self" and unwrap(value) is inner:
                return str(name)
        for name, value in getattr(names.get("self"), "__dict__", {}).items():
            if isinstance(value, nn.Module) and unwrap(value) is inner:
                return str(name)
    finally:
        del names
        forget_locals(frame)
    return ""
