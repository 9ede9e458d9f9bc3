"""From the marks of a step to the time of each call: every nanosecond is charged to exactly one owner."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from layerstep.profile.stamps import Mark
from layerstep.profile.timing import MarkKind

__all__ = ["OUTSIDE", "CallTime", "Cost", "StepTime", "fold"]

OUTSIDE = ("data", "loss", "after backward", "optimizer")
"""Parts of a step outside all modules. Data: everything between two steps; loss: forward and backward."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of our marks that they do not measure themselves, in nanoseconds, found by calibration."""

    call: float = 0.0
    """The cost of a call's marks, which falls into the time of its caller."""
    node: float = 0.0
    """The cost of a stamp at an autograd node, which falls into the time of its call."""


@dataclass(slots=True)
class CallTime:
    """One call of one module in a step. Times are in nanoseconds, without the calls in it."""

    key: int
    parent: int
    since: int
    until: int = 0
    forward: float = 0.0
    backward: float = 0.0
    is_recomputation: bool = False
    """A recomputation in the backward pass, whose time counts as backward."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """When the backward pass was in it."""


@dataclass(slots=True)
class StepTime:
    """A step: its calls in their order, and the time outside them."""

    calls: list[CallTime] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=lambda: dict.fromkeys(OUTSIDE, 0.0))
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """When the step was outside the calls, and in which part."""
    tool: float = 0.0
    """Our own work, which is in none of the other times."""
    aside: float = 0.0
    """Time in forwards without gradients of models that are trained, and between them.

    Not part of the step.
    """
    asides: int = 0
    """How many such forwards."""
    begin: int = 0
    end: int = 0
    samples: int = 0
    tokens: int = 0

    @property
    def total(self) -> float:
        """The time of the step without our work."""
        return sum(call.forward + call.backward for call in self.calls) + sum(self.outside.values())

    def totals(self) -> list[tuple[float, float]]:
        """Forward and backward of each call, including the calls in it."""
        sums = [[call.forward, call.backward] for call in self.calls]
        for index in range(len(self.calls) - 1, -1, -1):
            parent = self.calls[index].parent
            if parent >= 0:
                sums[parent][0] += sums[index][0]
                sums[parent][1] += sums[index][1]
        return [(forward, backward) for forward, backward in sums]


def fold(marks: Sequence[Mark], *, is_training: bool, cost: Cost | None = None) -> StepTime:
    """Compute the times of a step from its marks, which begin and end at its borders."""
    folding = _Folding(marks, is_training=is_training, cost=cost or Cost())
    return folding.step


class _Folding:
    """Goes through the marks once, and charges the time between two marks to the call that ran."""

    def __init__(self, marks: Sequence[Mark], *, is_training: bool, cost: Cost) -> None:
        self.step = StepTime()
        self._numbers: list[int] = []
        self._owners: list[int] = []
        self._running: list[int] = []
        self._in_backward = False
        self._node_owner = -1
        self._outside = "data"
        self._after_forward = "loss" if is_training else "data"
        self._note_owners(marks)
        self._optimizers = 0
        self._last = marks[0][1] if marks else 0
        self.step.begin = self._last
        for mark in marks:
            self._charge(mark[1])
            if mark[0] == MarkKind.ASIDE:
                self.step.aside += mark[2] - mark[1]
                self.step.asides += mark[4]
            else:
                self.step.tool += mark[2] - mark[1]
            self._last = mark[2]
            self._move(mark)
        self.step.end = self._last
        self._subtract(marks, cost)

    def _note_owners(self, marks: Iterable[Mark]) -> None:
        """Note which call made the autograd nodes from which number on; numbers only rise in a thread."""
        stack: list[int] = []
        made = 0
        for kind, _, _, _, number in marks:
            if kind == MarkKind.ENTER:
                stack.append(made)
                made += 1
            elif kind == MarkKind.EXIT and stack:
                stack.pop()
            else:
                continue
            if number and (not self._numbers or number >= self._numbers[-1]):
                self._numbers.append(number)
                self._owners.append(stack[-1] if stack else -1)

    def _charge(self, now: int) -> None:
        spent, step = now - self._last, self.step
        if self._running:
            call = step.calls[self._running[-1]]
            if call.is_recomputation:
                call.backward += spent
            else:
                call.forward += spent
        elif self._in_backward and self._node_owner >= 0:
            call = step.calls[self._node_owner]
            call.backward += spent
            if call.spans and call.spans[-1][1] == self._last:
                call.spans[-1] = (call.spans[-1][0], now)
            else:
                call.spans.append((self._last, now))
        else:
            where = "loss" if self._in_backward else self._outside
            step.outside[where] += spent
            if spent:
                step.spans.append((where, self._last, now))

    def _move(self, mark: Mark) -> None:
        kind, _, now, key, number = mark
        if kind == MarkKind.ENTER:
            parent = self._running[-1] if self._running else -1
            self._running.append(len(self.step.calls))
            self.step.calls.append(CallTime(key, parent, now, now, is_recomputation=self._in_backward))
        elif kind == MarkKind.EXIT and self._running:
            self.step.calls[self._running.pop()].until = mark[1]
            self._outside = self._after_forward
        elif kind == MarkKind.NODE:
            self._in_backward = True
            at = bisect_right(self._numbers, number) - 1
            owner = self._owners[at] if at >= 0 else -1
            self._node_owner = owner if owner < len(self.step.calls) else -1
        elif kind == MarkKind.END:
            self._in_backward = False
            self._outside = "optimizer" if self._optimizers else "after backward"  # LBFGS runs it inside
        elif kind == MarkKind.OPTIMIZER:
            self._optimizers += 1
            self._outside = "optimizer"
        elif kind == MarkKind.STEPPED:
            self._optimizers = max(0, self._optimizers - 1)
            self._outside = "optimizer" if self._optimizers else "data"  # one may step another inside

    def _subtract(self, marks: Iterable[Mark], cost: Cost) -> None:
        """Subtract the cost of our marks from the calls that it was charged to."""
        calls = self.step.calls
        for call in calls:
            if call.parent >= 0:
                parent = calls[call.parent]
                taken = min(cost.call, parent.backward if parent.is_recomputation else parent.forward)
                if parent.is_recomputation:
                    parent.backward -= taken
                else:
                    parent.forward -= taken
                self.step.tool += taken
        for kind, _, _, _, number in marks:
            if kind == MarkKind.NODE:
                at = bisect_right(self._numbers, number) - 1
                owner = self._owners[at] if at >= 0 else -1
                if 0 <= owner < len(calls):
                    taken = min(cost.node, calls[owner].backward)
                    calls[owner].backward -= taken
                    self.step.tool += taken
