"""Taps: what points put on a module. Only this folder puts anything on one.

A tap is installed on a module while a plan wants it and is gone otherwise. It is no part of the model: the
model is copied, pickled, scripted and compiled without its taps.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from layerstep._torch import hook_tables
from layerstep._torch.encoders import ForwardReplacement
from layerstep._torch.forward_swap import swap_forward
from layerstep._torch.hidden_hooks import HiddenHook, OwnHook
from layerstep.calls.events import Phase
from layerstep.hooks.fused import FusedForward, has_kernel

__all__ = ["Sink", "Taps", "Wanted"]

Asked = tuple[Any, ...]
"""The points to ask at a call (none: only the stepper). A tap hands them on and knows nothing of them."""
Wanted = Mapping[Phase, Asked]
"""What a plan wants at a module."""

_is_compiling = torch.compiler.is_dynamo_compiling
"""Dynamo knows the answer while it compiles: a tap leaves nothing in compiled or exported code."""


_ABSENT: Any = object()
_ENTER, _EXIT = Phase.ENTER, Phase.EXIT
_frame = sys._getframe


class Sink:
    """Where taps report to. While no step runs and nothing is noted, taps without points return at once."""

    __slots__ = (
        "edit",
        "entered",
        "lies_open",
        "listening",
        "noting",
        "only_counts",
        "raised",
        "report",
        "run_plain",
    )

    def __init__(
        self,
        report: Callable[[Phase, Asked, Any, Any, Any, Any, FrameType], Any],
        run_plain: Callable[[nn.Module, Callable[[], Any]], None],
        raised: Callable[[BaseException, Asked], None],
        entered: Callable[[nn.Module, Any, Any], None] = lambda module, args, kwargs: None,
        edit: Callable[[Phase, Asked, Any, Any, Any, Any, FrameType], Any] = lambda *call: None,
        only_counts: Callable[[Asked, nn.Module], bool] = lambda points, module: False,
    ) -> None:
        self.listening = False
        """A step goes on."""
        self.noting = False
        """Calls are noted, for the backward pass."""
        self.lies_open = False
        """A mode lies beyond the call that it was put on in: exits are heard of, to take it out."""
        self.report = report
        self.run_plain = run_plain
        """Runs the plain path of a layer whose result comes from a fused kernel."""
        self.raised = raised
        self.entered = entered
        """Notes what a module is called with that may overwrite it."""
        self.edit = edit
        """Gives what a call is to be given or to return instead; None leaves it alone."""
        self.only_counts = only_counts
        """Counts a call that has ended, if there is no more to do: the quickest way past one."""


class _Tap(OwnHook):
    """A hook of ours, registered to be called with keyword arguments.

    Torch calls it without them in two cases, in which it has nothing to report. It was removed while an
    earlier hook of the same call stood still: torch goes through the hooks that it found when the call
    began. Or torch has put it on another module, as quantization does: it takes itself off there.
    """

    __slots__ = ("points", "sink")

    def __init__(self, sink: Sink, points: Asked) -> None:
        self.sink = sink
        self.points = points

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Reached only where a tap is copied by itself, out of its table: it takes anything, does nothing."""
        return getattr, (contextlib.nullcontext(), "__exit__")

    def _leave(self, module: nn.Module) -> None:
        for table in hook_tables(module).values():
            for key in [key for key, hook in table.items() if hook is self]:
                del table[key]


class EnterTap(_Tap):
    """A forward pre-hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = _ABSENT) -> Any:
        if _is_compiling():
            return None
        if kwargs is _ABSENT:
            return self._leave(module)
        if self.points or self.sink.listening or self.sink.noting:
            return self.sink.report(_ENTER, self.points, module, args, kwargs, None, _frame(1))
        return None


class RootTap(EnterTap):
    """The pre-hook of an outermost module: it always reports, so that forwards are counted."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any = _ABSENT) -> Any:
        if _is_compiling():
            return None
        if kwargs is _ABSENT:
            return self._leave(module)
        return self.sink.report(_ENTER, self.points, module, args, kwargs, None, _frame(1))


class InputsTap(_Tap):
    """A forward pre-hook that notes what the module is called with."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, *kwargs: Any) -> None:
        if _is_compiling():
            return
        if not kwargs:
            self._leave(module)
            return
        self.sink.entered(module, args, kwargs[0])


class ExitTap(_Tap):
    """A forward hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = _ABSENT) -> Any:
        if _is_compiling():
            return None
        if output is _ABSENT:  # the last of the three is the output then
            return self._leave(module)
        points, sink = self.points, self.sink
        if sink.listening or sink.noting or (points and not sink.only_counts(points, module)):
            return sink.report(_EXIT, points, module, args, kwargs, output, _frame(1))
        return None


class InputEditTap(_Tap):
    """A forward pre-hook that may replace what the module is called with."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, *kwargs: Any) -> Any:
        if _is_compiling():
            return None
        if not kwargs:
            return self._leave(module)
        return self.sink.edit(_ENTER, self.points, module, args, kwargs[0], None, _frame(1))


class OutputEditTap(_Tap):
    """A forward hook that may replace what the module returns."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = _ABSENT) -> Any:
        if _is_compiling():
            return None
        if output is _ABSENT:
            return self._leave(module)
        return self.sink.edit(_EXIT, self.points, module, args, kwargs, output, _frame(1))


class RaisedTap(_Tap):
    """A forward pre-hook that lets the forward of this call report what it raises.

    A forward hook with `always_call` would be called inside a loop over the table of hooks: what the
    user does at the stop changes that table, and the loop would raise in place of the program's exception.
    """

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, *kwargs: Any) -> None:
        if _is_compiling():
            return
        if not kwargs:
            self._leave(module)
            return
        swap_forward(sys._getframe(1), module, self._reporting)

    def _reporting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def reporting(*args: Any, **kwargs: Any) -> Any:
            try:
                return forward(*args, **kwargs)
            except Exception as error:
                self.sink.raised(error, self.points)
                raise

        return reporting


_KINDS: dict[Phase, type[_Tap]] = {
    Phase.INPUTS: InputsTap,
    Phase.RAISED: RaisedTap,
    Phase.EDIT_INPUT: InputEditTap,
    Phase.EDIT_OUTPUT: OutputEditTap,
}
_EDITS = (Phase.EDIT_INPUT, Phase.EDIT_OUTPUT)


def _only_looks(hook: object) -> bool:
    return isinstance(hook, _Tap) and not isinstance(hook, InputEditTap | OutputEditTap)


def _is_tap(hook: object) -> bool:
    return isinstance(hook, _Tap)


class _Installed:
    """The taps on one module."""

    __slots__ = ("handles", "in_place_of_kernel", "module", "taps")

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.taps: dict[Phase, _Tap] = {}
        self.handles: dict[Phase, HiddenHook] = {}
        self.in_place_of_kernel: ForwardReplacement | None = None

    def take_off(self) -> None:
        for handle in self.handles.values():
            handle.remove()
        self.handles.clear()
        self.taps.clear()

    def remove(self) -> None:
        self.take_off()
        if self.in_place_of_kernel is not None:
            self.in_place_of_kernel.remove()


class Taps:
    """The taps that are installed now."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.roots: set[int] = set()
        """The ids of the modules whose calls are counted."""
        self._installed: dict[int, _Installed] = {}

    def __len__(self) -> int:
        return sum(len(entry.handles) for entry in self._installed.values())

    @property
    def modules(self) -> int:
        return len(self._installed)

    def asked_at(self, module: nn.Module, phase: Phase) -> Asked:
        """The points that a tap asks now."""
        entry = self._installed.get(id(module))
        tap = entry.taps.get(phase) if entry is not None else None
        return tap.points if tap is not None else ()

    def apply(self, plan: Mapping[int, tuple[nn.Module, Wanted]]) -> None:
        """Install what the plan wants and remove the rest; what is right already is not touched."""
        for key in [key for key in self._installed if key not in plan]:
            self._remove(key)
        for key, (module, wanted) in plan.items():
            entry = self._installed.get(key)
            if entry is None or entry.module() is not module:
                if entry is not None:
                    entry.remove()
                entry = self._installed[key] = _Installed(module)
                if has_kernel(module):
                    entry.in_place_of_kernel = ForwardReplacement(module, self._with_kernel)
            for phase in [
                phase
                for phase, tap in entry.taps.items()
                if phase not in wanted or type(tap) is not self._kind(module, phase)
            ]:
                entry.handles.pop(phase).remove()
                del entry.taps[phase]
            if any(phase in wanted and phase not in entry.taps for phase in _EDITS):
                entry.take_off()  # torch calls hooks in their order: an edit goes before those that look
            for phase in sorted(wanted, key=lambda phase: phase not in _EDITS):
                if phase in entry.taps:
                    entry.taps[phase].points = wanted[phase]
                else:
                    self._install(entry, module, phase, wanted[phase])

    def _with_kernel(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """While a layer that may be one kernel is tapped, the kernel still computes."""
        return FusedForward(
            module, forward, is_tap=_is_tap, only_looks=_only_looks, run_plain=self.sink.run_plain
        )

    def apply_to_leaves(self, leaves: list[nn.Module], models: Iterable[nn.Module]) -> None:
        """Tap the exits of these modules; a layer around one that is one kernel keeps its kernel."""
        fused = [module for model in models for module in model.modules() if has_kernel(module)]
        plan: dict[int, tuple[nn.Module, Wanted]] = {id(layer): (layer, {}) for layer in fused}
        self.apply(plan | {id(leaf): (leaf, {Phase.EXIT: ()}) for leaf in leaves})

    def apply_to(self, roots: list[nn.Module], *phases: Phase) -> None:
        """Tap these outermost modules, for an instrument that has no points."""
        self.roots = {id(root) for root in roots}
        self.apply({id(root): (root, dict.fromkeys(phases, ())) for root in roots})

    def _install(self, entry: _Installed, module: nn.Module, phase: Phase, points: Asked) -> None:
        tap = self._kind(module, phase)(self.sink, points)
        if isinstance(tap, ExitTap | OutputEditTap):
            handle = HiddenHook(module, nn.Module.register_forward_hook(module, tap, with_kwargs=True))
        else:
            handle = _put_before(module, tap)
        entry.taps[phase] = tap
        entry.handles[phase] = handle

    def _kind(self, module: nn.Module, phase: Phase) -> type[_Tap]:
        """The class of tap that belongs on a module now; it may become the root of a model later."""
        if phase is Phase.ENTER:
            return RootTap if id(module) in self.roots else EnterTap
        return _KINDS.get(phase, ExitTap)

    def _remove(self, key: int) -> None:
        self._installed.pop(key).remove()

    def clear(self) -> None:
        """Remove every tap."""
        for key in list(self._installed):
            self._remove(key)


def _put_before(module: nn.Module, tap: _Tap) -> HiddenHook:
    # Called through the class, as in `_install`: a ScriptModule refuses its own register methods, yet runs
    # hooks that are registered this way (its outermost call, which is the leaf we want).
    return HiddenHook(module, nn.Module.register_forward_pre_hook(module, tap, with_kwargs=True))  # type: ignore[arg-type]
