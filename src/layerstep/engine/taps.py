"""Taps: the only place that puts anything on a module.

A tap is installed on a module while a plan wants it and is gone otherwise. It copies and
pickles as a no-op, so a model stays copyable and savable while it is being debugged.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep.engine.events import Phase
from layerstep.engine.fused import FusedForward, has_kernel

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from layerstep.engine.points import Point

__all__ = ["Sink", "Taps", "Wanted", "no_tap", "watching_calls", "watching_output"]

Wanted = Mapping[Phase, tuple["Point", ...]]
"""What a plan wants at a module: the points to ask at each phase (none: only the stepper)."""


no_tap: Callable[..., None] = contextlib.nullcontext().__exit__
"""What a tap turns into when its module is copied or pickled: takes anything, does nothing.

Out of the standard library, so that a model saved while it was debugged loads where layerstep is not
installed.
"""


class Sink:
    """Where taps report to. While nobody steps or notes, taps without points return at once."""

    __slots__ = ("beside", "listening", "noting", "raised", "report")

    def __init__(
        self,
        report: Callable[[Phase, tuple[Point, ...], Any, Any, Any, Any], Any],
        beside: Callable[[nn.Module, Callable[[], Any]], None],
        raised: Callable[[BaseException, tuple[Point, ...]], None],
    ) -> None:
        self.listening = False
        """Somebody steps."""
        self.noting = False
        """Calls are noted, for the backward pass."""
        self.report = report
        self.beside = beside
        """Runs the plain path of a layer whose result comes from a fused kernel."""
        self.raised = raised


class _Tap:
    __slots__ = ("points", "sink")

    def __init__(self, sink: Sink, points: tuple[Point, ...]) -> None:
        self.sink = sink
        self.points = points

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return no_tap

    def __reduce__(self) -> str | tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _is_tap(hook: object) -> bool:
    return isinstance(hook, _Tap)


class EnterTap(_Tap):
    """A forward pre-hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.points or self.sink.listening or self.sink.noting:
            return self.sink.report(Phase.ENTER, self.points, module, args, kwargs, None)
        return None


class RootTap(EnterTap):
    """The pre-hook of an outermost module: it always reports, so that forwards are counted."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self.sink.report(Phase.ENTER, self.points, module, args, kwargs, None)


class ExitTap(_Tap):
    """A forward hook."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self.points or self.sink.listening or self.sink.noting:
            return self.sink.report(Phase.EXIT, self.points, module, args, kwargs, output)
        return None


class RaisedTap(_Tap):
    """A forward hook that torch also runs when the module is left by an exception (`always_call`)."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        # A module that is called in somebody's `except` block has an exception around it, too: that of
        # this call has come through the frame that runs the hooks.
        error = sys.exception()
        trace = error.__traceback__ if error is not None else None
        if error is not None and trace is not None and trace.tb_frame is sys._getframe(1):
            self.sink.raised(error, self.points)


class _Installed:
    """The taps on one module, and the stand-in for its forward if it has a fused kernel."""

    __slots__ = ("handles", "is_stood_in", "module", "taps")

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.taps: dict[Phase, _Tap] = {}
        self.handles: dict[Phase, RemovableHandle] = {}
        self.is_stood_in = has_kernel(module)

    def remove(self) -> None:
        for handle in self.handles.values():
            handle.remove()
        module = self.module()
        if self.is_stood_in and module is not None:
            module.__dict__.pop("forward", None)


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

    def apply(self, plan: Mapping[int, tuple[nn.Module, Wanted]]) -> None:
        """Install what the plan wants and remove the rest; what is right already is not touched."""
        for key in [key for key in self._installed if key not in plan]:
            self._remove(key)
        for key, (module, wanted) in plan.items():
            entry = self._installed.get(key)
            if entry is None or entry.module() is not module:
                entry = self._installed[key] = _Installed(module)
                if entry.is_stood_in:
                    module.__dict__["forward"] = FusedForward(module, _is_tap, self.sink.beside)
            for phase in [phase for phase in entry.handles if phase not in wanted]:
                entry.handles.pop(phase).remove()
                del entry.taps[phase]
            for phase, points in wanted.items():
                if phase in entry.taps:
                    entry.taps[phase].points = points
                else:
                    self._install(entry, module, phase, points)

    def apply_to(self, roots: list[nn.Module], *phases: Phase) -> None:
        """Tap these outermost modules, for somebody who asks no points."""
        self.roots = {id(root) for root in roots}
        self.apply({id(root): (root, dict.fromkeys(phases, ())) for root in roots})

    def _install(self, entry: _Installed, module: nn.Module, phase: Phase, points: tuple[Point, ...]) -> None:
        # Called through the class: a ScriptModule refuses its own register methods, yet
        # runs hooks that are registered this way (its outermost call, which is the leaf we want).
        if phase is Phase.ENTER:
            tap: _Tap = (RootTap if id(module) in self.roots else EnterTap)(self.sink, points)
            handle = nn.Module.register_forward_pre_hook(module, tap, with_kwargs=True)  # type: ignore[arg-type]
        elif phase is Phase.RAISED:
            tap = RaisedTap(self.sink, points)
            handle = nn.Module.register_forward_hook(module, tap, with_kwargs=True, always_call=True)
        else:
            tap = ExitTap(self.sink, points)
            handle = nn.Module.register_forward_hook(module, tap, with_kwargs=True)
        entry.taps[phase] = tap
        entry.handles[phase] = handle

    def _remove(self, key: int) -> None:
        self._installed.pop(key).remove()

    def clear(self) -> None:
        """Remove every tap."""
        for key in list(self._installed):
            self._remove(key)


@contextlib.contextmanager
def watching_calls(called: Callable[[nn.Module], None]) -> Iterator[None]:
    """Report each module that is called meanwhile, before it runs; for expressions at the prompt."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    def hook(module: nn.Module, args: Any) -> None:
        called(module)

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def watching_output(module: nn.Module, seen: Callable[[Any], None]) -> Iterator[None]:
    """Report what one module returns meanwhile, also where its own hooks are hidden."""
    from torch.nn.modules.module import register_module_forward_hook

    def hook(called: nn.Module, args: Any, output: Any) -> None:
        if called is module:
            seen(output)

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
