"""The steps of a profile: what is kept of each, and what a call or a message tells."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from layerstep._torch.guards import functions_off
from layerstep._torch.tensors import is_tensor
from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.profile.stamps import DeviceStamps, HostStamps, Mark, Stamps
from layerstep.profile.timing import Clock, MarkKind
from layerstep.views import Fields, Group, Notice, Text

__all__ = [
    "Inspected",
    "KeptSteps",
    "StepRecorder",
    "Timed",
    "TimedStep",
    "counts_of",
    "first_line",
    "others_on",
    "part_of_step",
    "progress",
    "shortfall",
    "size_of",
    "until_last_exit",
    "without_unused",
]

MOST_MARKS = 500_000
"""The most marks of all steps together, about 80 MB; beyond it the oldest steps are dropped."""
MOST_EVENTS = 20_000
"""The most events of a device that are alive at once; past it, those that have happened are read."""
BAR = 30
MOST_LOOKS = 8
"""The most models that are inspected."""


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
    """Are its stamps times? Else they are events of a device."""
    samples: int = 0
    tokens: int = 0
    pace: list[float] = field(default_factory=list)
    """Seconds that a small fixed piece of work took after it, each time that it ran."""


class KeptSteps(deque[TimedStep]):
    """The timed steps, the oldest first, bounded by the number of their marks."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = 0

    def clear(self) -> None:
        super().clear()
        self._marks = 0

    def keep(self, step: TimedStep, stamps: Stamps) -> None:
        self.append(step)
        self._marks += len(step.marks)
        while len(self) > 1 and self._marks > MOST_MARKS:
            self._marks -= len(self.popleft().marks)
        if isinstance(stamps, HostStamps):
            step.is_read = True
            return
        waiting = [each for each in self if not each.is_read]
        if sum(len(each.marks) for each in waiting) > MOST_EVENTS:
            for each in waiting:
                if stamps.has_passed(each.marks):
                    each.marks, each.is_read = stamps.nanoseconds(each.marks), True

    def settle(self, stamps: Stamps) -> None:
        """Turn all stamps into times. Waits for the device once."""
        waiting = [step for step in self if not step.is_read]
        if waiting and isinstance(stamps, DeviceStamps):
            stamps.wait_for(waiting[-1].marks)
            for step in waiting:
                step.marks, step.is_read = stamps.nanoseconds(step.marks), True


class Inspected:
    """Which models have been rerun to count their operations: each once, or twice if that failed."""

    def __init__(self) -> None:
        self._done: set[int] = set()
        self._tried: set[int] = set()

    def clear(self) -> None:
        self._done.clear()
        self._tried.clear()

    def are_wanted(self, module: nn.Module, *, is_late: bool) -> bool:
        """`is_late`: in a step that counts, only the first model is still inspected."""
        return id(module) not in self._done and len(self._done) < MOST_LOOKS and not (self._done and is_late)

    def note(self, module: nn.Module, *, has_worked: bool) -> None:
        if has_worked or id(module) in self._tried:
            self._done.add(id(module))
        self._tried.add(id(module))  # try again at the next call: the first call with a cache is unusual


def progress(done: int, wanted: int, *, word: str, warming: int) -> str:
    """The progress as a bar."""
    bar = "█" * round(BAR * done / wanted)
    where = f"{warming} to warm up" if warming else f"{done:,} of {wanted:,} {word}{'s' * (wanted != 1)}"
    return f"profile {bar:░<{BAR}} {where}"


def shortfall(done: int, wanted: int, count: int, *, word: str, warm_up: int) -> str:
    """Why the run, which ended after `count` steps, has fewer timed steps than wanted; else ""."""
    if done:
        return f"profile: the run ended after {done:,} of {wanted:,} {word}s" if done < wanted else ""
    if not count:
        return "profile: nothing was timed: no model was called"
    seen = f"the run ended after {count:,} {word}{'s' * (count != 1)}"
    return f"profile: nothing was timed: {seen}, and the first {warm_up} do not count"


def part_of_step(clock: Clock, is_training: bool) -> str:
    """Where in a step the run is: in a model, between two steps, or in the rest; else ""."""
    if clock.inspect is not None:
        return ""
    if clock.depth:
        return "inside"
    last = clock.log[-1][0] if clock.log else MarkKind.TOOL
    if last == MarkKind.ASIDE:
        return ""
    return "between" if last in (MarkKind.STEPPED, MarkKind.TOOL) or not is_training else "rest"


def until_last_exit(marks: list[Mark]) -> list[Mark]:
    """The marks of a step that ends with the last call in it."""
    last = max(at for at, mark in enumerate(marks) if mark[0] == MarkKind.EXIT)
    return [*marks[: last + 1], (MarkKind.TOOL, *marks[last][2:3] * 2, -1, 0)]


def without_unused(marks: list[Mark], begins: list[int]) -> list[Mark]:
    """The marks of a step without the calls at `begins` that no backward pass has reached."""
    used = sorted(mark[4] for mark in marks if mark[0] == MarkKind.NODE)
    kept, at = list[Mark](), 0
    for begin in begins:
        end = _end_of(marks, begin)
        first, beyond = marks[begin][4], marks[end][4]
        if begin < at or bisect_left(used, first) < bisect_left(used, beyond):
            continue
        kept += marks[at:begin]
        kept.append((MarkKind.ASIDE, marks[begin][1], marks[end][2], -1, 1))
        at = end + 1
    return kept + marks[at:]


def _end_of(marks: list[Mark], begin: int) -> int:
    depth = 0
    for at in range(begin, len(marks)):
        kind = marks[at][0]
        depth += (kind == MarkKind.ENTER) - (kind == MarkKind.EXIT)
        if not depth:
            return at
    return len(marks) - 1


class StepRecorder(Protocol):
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
    """Samples and tokens of a call: the rows of its first tensor, and its elements if they are token ids."""
    with functions_off():
        first = next((x for x in (*args, *kwargs.values()) if is_tensor(x) and x.dim() > 0), None)
        if first is None or first.is_nested:
            return 0, 0
        if first.dim() == 1 and first.is_floating_point():
            return 1, 0  # one vector, without a batch
        is_tokens = first.dim() == 2 and not (first.is_floating_point() or first.dtype is torch.bool)
        return int(first.shape[0]), first.numel() if is_tokens else 0


def others_on(session: Session) -> set[str]:
    """The commands of what else is on now, and takes time in each operation or step."""
    return {each.command for each in session.instruments if each.command and each.cost()}
