"""The steps of a profile: what is kept of each, and what is read off a call or a message."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from layerstep.engine.messages import Message
from layerstep.engine.timing import Mark
from layerstep.views import Fields, Group, Notice, Text

__all__ = ["Recorder", "Timed", "TimedStep", "counts_of", "first_line", "size_of"]


@dataclass(frozen=True, slots=True)
class Timed:
    """A module whose calls are timed."""

    path: str
    kind: str
    parameters: int
    is_root: bool
    reference: weakref.ref[nn.Module]


@dataclass(slots=True)
class TimedStep:
    """The marks of one step, or of one forward where nothing is trained."""

    marks: list[Mark]
    is_training: bool
    samples: int = 0
    tokens: int = 0
    cpu: float = 0.0
    """Seconds of processor time, of all threads."""
    waited: float = 0.0
    """Seconds in which others had the processor."""
    pace: float = 0.0
    """Seconds of a small fixed piece of work beside it."""


class Recorder(Protocol):
    """Something that records while steps are timed: torch.profiler."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def first_line(message: Message) -> str:
    view = message.view
    if message.kind == "notice" and isinstance(view, Notice):
        return view.text
    if message.kind != "stop":
        return ""
    while isinstance(view, Group) and view.views:
        view = view.views[0]
    if isinstance(view, Fields):
        return " ".join(span.text for span in view.title)
    return view.text.partition("\n")[0] if isinstance(view, Text | Notice) else "stop"


def size_of(parameter: Tensor) -> int:
    try:
        return parameter.numel()
    except Exception:  # a lazy parameter has no size yet
        return 0


def counts_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Samples and tokens of a call: the rows of its first tensor; and, where those are words, all of it."""
    first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > 0), None)
    if first is None or first.is_nested:
        return 0, 0
    is_tokens = first.dim() == 2 and not (first.is_floating_point() or first.dtype is torch.bool)
    return int(first.shape[0]), first.numel() if is_tokens else 0
