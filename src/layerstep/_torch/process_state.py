"""State of the whole process that a rerun would touch: global hooks, cached parametrizations."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from torch.nn.modules import module as _modules

__all__ = ["global_forward_hooks", "global_hooks_silent", "parametrizations_kept"]

_TABLES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)


class _Silenced:
    """A global hook of the program, silent in one thread."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self._thread = threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == self._thread:
            return None
        return self.hook(*args, **kwargs)


def global_forward_hooks() -> list[Any]:
    """The hooks that get the result of every module. Fallback: none is found."""
    return list(getattr(_modules, "_global_forward_hooks", {}).values())


@contextlib.contextmanager
def global_hooks_silent() -> Iterator[None]:
    """Meanwhile this thread calls no global hook of the program. Ours are called.

    Each is replaced under its number, so that other threads call it and whoever removes it finds it.
    Fallback: a table that torch has renamed is left alone, and its hooks are called.
    """
    replaced: list[tuple[Any, Any, _Silenced]] = []
    for table in [getattr(_modules, name, {}) for name in _TABLES]:
        for key, hook in list(table.items()):
            if not str(getattr(hook, "__module__", "")).startswith("layerstep."):
                silenced = _Silenced(hook)
                table[key] = silenced
                replaced.append((table, key, silenced))
    try:
        yield
    finally:
        for table, key, silenced in reversed(replaced):
            if table.get(key) is silenced:  # else it was removed meanwhile
                table[key] = silenced.hook


@contextlib.contextmanager
def parametrizations_kept(*, empty: bool = False) -> Iterator[None]:
    """Leave the cache of `parametrize.cached()` as it was: reading a weight must not fill it.

    `empty`: cache nothing meanwhile, because a copy of a module, or aliases of its weights, must not get what
    the module itself has computed. Fallback: the cache is not found and stays as it is.
    """
    found: Any = sys.modules.get("torch.nn.utils.parametrize")
    if found is None or not getattr(found, "_cache_enabled", 0) or not hasattr(found, "_cache"):
        yield
        return
    cache, enabled = found._cache, found._cache_enabled
    found._cache = {} if empty else dict(cache)
    found._cache_enabled = 0 if empty else enabled
    try:
        yield
    finally:
        found._cache, found._cache_enabled = cache, enabled
