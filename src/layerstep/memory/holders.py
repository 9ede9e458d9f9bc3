"""What holds a tensor: a variable, an attribute, a container, or the graph behind another tensor."""

from __future__ import annotations

import gc
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from layerstep.process.frames import forget_locals, is_ours
from layerstep.process.thread_frames import frames_of_threads

__all__ = ["holder_of", "running_frames"]

STEPS = 4  # from the tensor through containers to a name
NODES = 20_000  # of autograd graphs searched for one tensor


def holder_of(tensor: torch.Tensor) -> str:
    """What keeps this tensor alive, in a few words; frames of the debugger do not count."""
    found = _holder_name(tensor)
    if found:
        return found
    for other in _tensors_with_a_graph():
        if other is not tensor and _reaches(other, tensor):
            name = _holder_name(other)
            if name:
                return f"the autograd graph behind {name}"
    return "autograd or C++ code: no Python object refers to it"


def _holder_name(target: object) -> str:
    return "".join(_held(target, STEPS, set()) or ())


def _held(target: object, steps: int, seen: set[int]) -> tuple[str, str, str] | None:
    """How an object is reached: a name, the steps from it, and where the name is."""
    name = _variable(target)
    if name or not steps or id(target) in seen:
        return name
    seen.add(id(target))
    for referrer in gc.get_referrers(target):
        if _is_ours(referrer) or id(referrer) in seen:
            continue
        step = _step(referrer, target)
        if step is None:
            continue
        if step.startswith("="):
            return step[1:], "", ""
        owner = _held(referrer, steps - 1, seen)
        if owner is not None:
            return owner[0], owner[1] + step, owner[2]
    return None


def _step(referrer: Any, target: object) -> str | None:
    """How a referrer leads to the target: an index, a key, an attribute; `=` names it in full."""
    kind = type(referrer)
    if kind is dict:
        key = next((key for key, value in list(referrer.items()) if value is target), None)
        owner = _owner_of_namespace(referrer)
        if owner is not None:
            return f"={owner}.{key}" if isinstance(owner, str) else None
        return f"[{key!r}]"
    if kind in (list, tuple, deque):
        return next((f"[{i}]" for i, value in enumerate(referrer) if value is target), None)
    if kind is types.CellType:
        return ", in a closure"
    if kind.__module__ in ("builtins", "weakref", "types") or isinstance(referrer, types.FrameType):
        return None
    for name, value in getattr(referrer, "__dict__", {}).items():
        if value is target:
            return f"=.{name} of a {kind.__name__}"
    return None


def _owner_of_namespace(namespace: dict[Any, Any]) -> str | None:
    """The module or object whose `__dict__` this is."""
    if "__name__" in namespace and namespace is getattr(
        sys.modules.get(str(namespace["__name__"])), "__dict__", None
    ):
        return f"global {namespace['__name__']}"
    for owner in gc.get_referrers(namespace):
        if getattr(owner, "__dict__", None) is namespace and not isinstance(owner, types.ModuleType):
            return f"a {type(owner).__name__}"
    return None


def _variable(target: object) -> tuple[str, str, str] | None:
    """The local variable of a running function that is this object."""
    for frame in running_frames():
        names = frame.f_locals
        name = next((name for name, value in names.items() if value is target), "")
        del names
        if frame.f_code.co_name != "<module>":
            forget_locals(frame)
        if name:
            where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            return name, "", f" in {frame.f_code.co_name}() at {where}"
    return None


def running_frames() -> Iterator[types.FrameType]:
    """The frames of the program in all threads, innermost first."""
    for frame in frames_of_threads().values():
        found: types.FrameType | None = frame
        while found is not None:
            if not is_ours(found):
                yield found
            found = found.f_back


def _is_ours(referrer: object) -> bool:
    if isinstance(referrer, types.FrameType):
        return True  # running frames are searched by variable
    return type(referrer).__module__.startswith("layerstep.")


def _tensors_with_a_graph() -> list[torch.Tensor]:
    return [
        value
        for value in gc.get_objects()
        if issubclass(type(value), torch.Tensor) and value.grad_fn is not None
    ]


def _reaches(tensor: torch.Tensor, target: torch.Tensor) -> bool:
    """Is the node that made `target` part of the graph behind `tensor`?"""
    wanted = target.grad_fn
    if wanted is None:
        return False
    waiting, seen = [tensor.grad_fn], set[Any]()
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        if node is wanted:
            return True
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [below for below, _ in node.next_functions]
    return False
