"""What a process says to other ranks. Seen on torch 2.13.0."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["BeforeCollectives", "collectives_so_far"]

_NAMESPACES = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd"))


def collectives_so_far() -> int:
    """How many collectives and messages all process groups have begun. Fallback: 0, as if there were none.

    Gloo counts sends and receives, too.
    """
    found: Any = sys.modules.get("torch.distributed")
    if not (found and found.is_available() and found.is_initialized()):
        return 0
    world: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return sum(int(group._get_sequence_number_for_group()) for group in world._world.pg_map)
    except (AttributeError, RuntimeError, TypeError):  # another torch, or a group that does not count
        return 0


class BeforeCollectives(TorchDispatchMode):
    """Calls a function before a collective or a message is begun; the function may raise.

    Fallback: an operator without a namespace is none of them.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._told = told

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in _NAMESPACES:
            self._told(str(func).partition(".")[2].partition(".")[0])
        return func(*args, **(kwargs or {}))
