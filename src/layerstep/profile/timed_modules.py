"""The modules that a profile times: all but those in compiled code and replicas."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import nn

from layerstep._torch import is_compiled, is_scripted, is_wrapper, unwrap
from layerstep.module_paths.models import Model, Models
from layerstep.profile.steps import Timed, size_of
from layerstep.profile.timing import Clock, TimedCall, TimedCompiled, timed_call_of

__all__ = ["Timeable", "TimedModules", "is_whole", "timeable_modules"]


@dataclass(frozen=True, slots=True)
class Timeable:
    """A module whose calls are timed."""

    module: nn.Module
    path: str
    is_root: bool
    is_whole: bool = False
    """Is it timed as one piece?"""
    is_compiled: bool = False
    """Was it compiled in place, by `module.compile()`?"""


def is_whole(module: nn.Module) -> bool:
    """Is it timed as one piece?

    Compiled code calls no modules, and a DataParallel calls copies of them.
    """
    is_replicated = isinstance(module, nn.DataParallel) and len(module.device_ids) > 1
    return is_compiled(module) or is_replicated


def timeable_modules(models: Models, model: Model, *, outermost: bool) -> Iterator[Timeable]:
    """The modules of a model that a profile times, the outermost first; with `outermost` only that one."""
    given, root = model.given, model.root
    if given is None or root is None:
        return
    wrapper: nn.Module | None = given
    while wrapper is not None and wrapper is not root:
        if is_whole(wrapper):
            yield _whole(wrapper, model.name, is_root=True)
            return
        wrapper = next(iter(wrapper._modules.values()), None)
    closed: set[int] = set()
    for module in root.modules():
        if id(module) not in closed and is_whole(module):
            closed |= {id(part) for part in module.modules()}
            if not outermost or module is root:
                yield _whole(module, models.path_of(unwrap(module)), is_root=module is root)
    for _, module in [(model.name, root)] if outermost else list(model.names):
        if id(module) not in closed:
            yield from _opened(module, models.path_of(module), closed, is_root=module is root)


def _opened(module: nn.Module, path: str, closed: set[int], *, is_root: bool) -> Iterator[Timeable]:
    if is_scripted(module) or not callable(getattr(module, "forward", None)):
        closed |= {id(part) for part in module.modules()}
        yield Timeable(module, path, is_root, is_whole=True)
    elif type(module).forward is not nn.Module.forward or "forward" in module.__dict__:
        yield Timeable(module, path, is_root)  # a ModuleList is never called


def _whole(module: nn.Module, path: str, *, is_root: bool) -> Timeable:
    in_place = is_compiled(module) and not is_wrapper(module)
    return Timeable(module, path, is_root, is_whole=True, is_compiled=in_place)


class Timing(Protocol):
    """Times the calls, and hears about each call of an outermost module."""

    clock: Clock

    def call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None: ...

    def has_raised(self) -> None: ...


class TimedModules:
    """The replaced calls of a profile, and what is known of each timed module."""

    def __init__(self, profile: Timing) -> None:
        self.modules: list[Timed] = []
        """By the key in the marks: what a table needs to know of a module, which may be gone by then."""
        self.untimed: list[str] = []
        self._profile = profile
        self._replacements: dict[int, TimedCall] = {}
        self._keys: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._replacements)

    def forget(self) -> None:
        self.modules.clear()
        self._keys.clear()

    def remove(self) -> None:
        for replacement in self._replacements.values():
            replacement.remove()
        self._replacements.clear()

    def apply(self, models: Models, *, outermost: bool) -> None:
        """Replace the calls of each module that is not timed yet."""
        self.untimed = []
        for model in models:
            for place in timeable_modules(models, model, outermost=outermost):
                self._place(place)

    def _place(self, place: Timeable) -> None:
        module, path = place.module, place.path
        if place.is_whole:
            self.untimed.append(path)
        key = self._keys.get(id(module))
        if key is not None and self.modules[key].reference() is not module:  # that one is gone
            key = None
        if key is not None and self.modules[key].path != path:  # a second model was found
            self.modules[key] = replace(self.modules[key], path=path)
        clock = self._profile.clock
        if timed_call_of(module, clock) is not None:
            return
        if key is None:
            key = self._keys[id(module)] = len(self.modules)
            own = module.parameters() if place.is_whole else module.parameters(recurse=False)
            count = sum(size_of(p) for p in own)
            kind = type(unwrap(module)).__name__
            self.modules.append(Timed(path, kind, count, place.is_root, weakref.ref(module)))
        around = Around(self._profile, module) if place.is_root else None
        kind_of_call = TimedCompiled if place.is_compiled else TimedCall
        replacement = kind_of_call(module, clock, key, around)
        replacement.install()
        self._replacements[id(module)] = replacement


class Around:
    """What the replaced call of an outermost module tells its profile."""

    __slots__ = ("_module", "_profile")

    def __init__(self, profile: Timing, module: nn.Module) -> None:
        self._profile = profile
        self._module = weakref.ref(module)

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = self._module()
        if module is not None:
            self._profile.call_begins(module, args, kwargs)

    def ended(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, raised: bool) -> None:
        module = self._module()
        if raised:
            self._profile.has_raised()
        elif module is not None:
            self._profile.ended(module, args, kwargs, output)
