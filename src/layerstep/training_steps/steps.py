"""Training steps: an optimizer has stepped. Seen by torch's global hooks; the script is not changed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from layerstep._torch.guards import no_grad_unseen

__all__ = ["Stepped", "Steps"]


@dataclass(slots=True)
class Stepped:
    """One optimizer of the program, and how often it has stepped."""

    number: int
    kind: str
    reference: weakref.ref[Optimizer]
    steps: int = 0

    @property
    def optimizer(self) -> Optimizer | None:
        return self.reference()


class Steps:
    """The optimizers that have stepped since the session was attached; the first counts the training steps.

    `before` and `after` are called at each step, with the optimizer; before it, the gradients are complete.
    What raises in one of them is reported by `failed` and never reaches the program. A subclass that
    calls the step of its parent makes one step, though torch calls its hooks for both.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._handles: list[Any] = []
        self._seen: dict[int, Stepped] = {}
        self._running: dict[int, int] = {}
        """Of each optimizer that steps now, the number of the frame in which it began."""
        self.counted_before = 0
        """Training steps that were done elsewhere: in the run that wrote a core file."""
        self.before: list[Callable[[Stepped], None]] = []
        self.after: list[Callable[[Stepped], None]] = []
        self.total = 0
        """Steps of all optimizers."""
        self._alarms: dict[Callable[[], None], int] = {}
        """What to call once, and at which of them."""
        self._next_alarm = 0

    @property
    def count(self) -> int:
        """Training steps: those of the first optimizer."""
        first = next(iter(self._seen.values()), None)
        return self.counted_before + (first.steps if first is not None else 0)

    @property
    def optimizers(self) -> list[Stepped]:
        return [each for each in self._seen.values() if each.optimizer is not None]

    @property
    def is_on(self) -> bool:
        return bool(self._handles)

    def start(self) -> None:
        """Begin to count; a step then costs about a microsecond more."""
        if not self._handles:
            self._handles = [
                register_optimizer_step_pre_hook(self._is_about_to),
                register_optimizer_step_post_hook(self._has),
            ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()
        self.before.clear()
        self.after.clear()
        self._alarms.clear()

    def call_at(self, total: int, mine: Callable[[], None]) -> None:
        """Call once, after the step with this number; until then it costs nothing. Zero takes it back."""
        self._alarms.pop(mine, None)
        if total:
            self._alarms[mine] = total
        self._next_alarm = min(self._alarms.values(), default=0)

    @staticmethod
    def listen(
        listeners: list[Callable[[Stepped], None]], mine: Callable[[Stepped], None], wanted: bool
    ) -> None:
        """Be among those who are called, or not, whatever it was before."""
        if wanted and mine not in listeners:
            listeners.append(mine)
        elif not wanted and mine in listeners:
            listeners.remove(mine)

    def _of(self, optimizer: Optimizer) -> Stepped:
        known = self._seen.get(id(optimizer))
        if known is None or known.optimizer is not optimizer:
            number = len(self._seen) + 1
            known = Stepped(number, type(optimizer).__name__, weakref.ref(optimizer))
            self._seen[id(optimizer)] = known
        return known

    def _is_about_to(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        frame = sys._getframe(1)  # torch's, around one step
        if not _is_within(frame.f_back, self._running.get(id(optimizer))):
            self._running[id(optimizer)] = id(frame)
            if self.before or id(optimizer) not in self._seen:
                self._call(self.before, optimizer, steps=0)

    def _has(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        frame = id(sys._getframe(1))
        if self._running.get(id(optimizer), frame) != frame:
            return
        self._running.pop(id(optimizer), None)
        self._call(self.after, optimizer, steps=1)

    def _call(self, listeners: list[Callable[[Stepped], None]], optimizer: Optimizer, *, steps: int) -> None:
        try:
            stepped = self._of(optimizer)
            stepped.steps += steps
            self.total += steps
            for listener in tuple(listeners):
                with no_grad_unseen():
                    listener(stepped)
            if self._alarms and self.total >= self._next_alarm:
                self._ring()
        except Exception as error:
            self._failed(error)

    def _ring(self) -> None:
        for mine in [each for each, total in list(self._alarms.items()) if total <= self.total]:
            self.call_at(0, mine)
            with no_grad_unseen():
                mine()


def _is_within(frame: FrameType | None, outer: int | None) -> bool:
    """Does a frame run within the one with this number? A frame that an exception has ended is not met."""
    while outer is not None and frame is not None:
        if id(frame) == outer and frame.f_code.co_name == "wrapper":
            return True
        frame = frame.f_back
    return False
