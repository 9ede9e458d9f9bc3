"""The steps of a profile: what is kept of each, and what is read off a call or a message."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from layerstep.engine.messages import Message
from layerstep.engine.timing_stamps import Mark
from layerstep.views import Fields, Group, Notice, Text

__all__ = ["Cycle", "Recorder", "Timed", "TimedStep", "counts_of", "first_line", "size_of"]


ALONE = 20
"""Steps of the first optimizer without another, after which it is alone."""


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
    is_read: bool = False
    """Are its stamps times, and no longer events of a device?"""
    samples: int = 0
    tokens: int = 0
    pace: list[float] = field(default_factory=list)
    """Seconds of a small fixed piece of work beside it, each time that it was done."""


class Cycle:
    """Whose step ends a training step: of several optimizers, the last that steps before the first again.

    So a generator's backward is in one step with its forward, though the discriminator steps between them.
    """

    def __init__(self) -> None:
        self.is_new = False
        """Was it another until now? Then the step that ends is torn."""
        self._first = self._last = self._other = 0
        self._alone = 0

    def ends_with(self, number: int) -> bool:
        """An optimizer has stepped; does that end a training step?"""
        self.is_new = False
        if not self._first or number < self._first:
            self._first = self._last = number
        if number != self._first:
            self._other, self._alone = number, 0
        else:
            self._alone += 1
            last = self._other or (self._first if self._alone > ALONE else self._last)
            self.is_new, self._last, self._other = last != self._last, last, 0
        return number == self._last


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
