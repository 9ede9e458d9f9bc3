"""Which module owns the running operation: by the Python frames in a forward, by the node in a backward.

This puts nothing on a module. Autograd numbers its nodes as it makes them, so the module that ran when a
number was given is the owner of that node in a backward pass.
"""

from __future__ import annotations

import bisect
import weakref
from types import FrameType

from torch import nn

from layerstep._torch import (
    autograd_count,
    current_node,
    is_in_backward,
    module_call_code,
    node_number,
    unwrap,
)
from layerstep.module_paths.models import Models

__all__ = ["OpOwners", "module_at"]


MOST = 500_000
"""The most runs of nodes with a known module in one step; beyond it the oldest are forgotten."""


def module_at(frame: FrameType | None) -> nn.Module | None:
    """The innermost module call that a frame is in."""
    return _call_at(frame)[0]


def _call_at(frame: FrameType | None) -> tuple[nn.Module | None, FrameType | None]:
    """The innermost module call that a frame is in, and the frame that made it."""
    code = module_call_code  # its own loop, because every operation that takes memory asks
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return None, None
    names = frame.f_locals
    module: nn.Module | None = names.get("self")
    if type(names) is dict:
        names.clear()  # up to Python 3.12 a copy, which the frame would keep
    return module, frame.f_back


class OpOwners:
    """The paths of what runs, and which nodes were made in which module."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._counts: list[int] = []
        self._owners: list[str] = []

    def forget(self) -> None:
        """A new step: forget the nodes of the last one."""
        self._paths.clear()
        self._counts.clear()
        self._owners.clear()

    def path_of(self, module: nn.Module | None) -> str:
        if module is None:
            return ""
        known = self._paths.get(id(module))
        if known is None or known[0]() is not module:
            known = self._paths[id(module)] = (weakref.ref(module), self._models.path_of(unwrap(module)))
        return known[1]

    def _path_at(self, frame: FrameType | None) -> str:
        """The path of the innermost call of a known model: compiled code runs in modules of its own."""
        module, outside = _call_at(frame)
        path = self.path_of(module)
        while module is not None and path.startswith("<"):
            module, outside = _call_at(outside)
            path = self.path_of(module) or path
        return path

    def here(self, frame: FrameType | None) -> tuple[str, str]:
        """The path and the part of the step of the operation that a frame calls."""
        if is_in_backward():
            node = current_node()
            inner = module_at(frame) if node is None or self._is_recomputing(frame) else None
            path = self.path_of(inner) if inner is not None else self.owner(node_number(node)) if node else ""
            if inner is not None:
                self.note(path)  # a reentrant checkpoint makes nodes that a nested backward pass runs
            return path, "backward"
        path = self._path_at(frame)
        self.note(path)
        return path, "forward" if path else "between"

    @property
    def has_new_nodes(self) -> bool:
        """Were nodes made whose path is not noted?"""
        return not self._counts or autograd_count() > self._counts[-1]

    def note(self, path: str) -> None:
        """Note that the nodes made since the last note belong to this path."""
        count = autograd_count()
        if not self._counts or count > self._counts[-1]:
            if self._owners and self._owners[-1] == path:
                self._counts[-1] = count
                return
            if len(self._counts) >= MOST:
                del self._counts[: MOST // 2], self._owners[: MOST // 2]
            self._counts.append(count)
            self._owners.append(path)

    @staticmethod
    def _is_recomputing(frame: FrameType | None) -> bool:
        """Is a module called during the backward pass, as checkpointing does?"""
        while frame is not None:
            name = frame.f_code.co_name
            if name == "_call_impl":
                return True
            if name == "_engine_run_backward":
                return False
            frame = frame.f_back
        return False

    def owner(self, number: int) -> str:
        """The module that ran when a node was made."""
        at = bisect.bisect_right(self._counts, number)
        return self._owners[at] if at < len(self._owners) else ""
