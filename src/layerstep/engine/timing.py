"""Time at the boundaries of module calls: a stand-in for `forward` that notes two stamps.

It costs a tenth of a pair of hooks and leaves fused kernels on. The backward needs no module hooks: autograd
runs its nodes in the falling order of the numbers that they got in the forward, so a stamp at the nodes on
the boundary of a call, and the range of numbers of each call, say whose time it is.
"""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from layerstep.engine._torch import at_end_of_backward, autograd_count, graph_task

__all__ = ["Clock", "DeviceStamps", "Kind", "Mark", "Stamps", "TimedForward"]

_is_compiling = torch.compiler.is_dynamo_compiling


class Kind:
    """What happened at a mark. Plain numbers: a mark is made twice a module call."""

    ENTER = 0
    EXIT = 1
    NODE = 2
    """The backward has come to a node on the boundary of a call; `number` is the node's."""
    END = 3
    """The backward pass has ended."""
    OPTIMIZER = 4
    STEPPED = 5
    TOOL = 6
    """The debugger has worked."""


Mark = tuple[int, Any, Any, int, int]
"""What happened; when our own work on it began and ended; the key of the module; a number of autograd.

ENTER and EXIT have the number that the next node gets. A plain tuple: a named one takes 0.6 µs to make.
"""


class Stamps(Protocol):
    """Where the time comes from."""

    @property
    def device(self) -> str: ...

    def now(self) -> Any: ...

    def nanoseconds(self, marks: list[Mark]) -> list[Mark]: ...


class HostStamps:
    """The clock of the processor."""

    device = "cpu"
    now = staticmethod(time.perf_counter_ns)

    def nanoseconds(self, marks: list[Mark]) -> list[Mark]:
        return marks


class DeviceStamps:
    """Events on the current stream of an accelerator, read together after one synchronization.

    Between two events lies what the device did between them, however far ahead the host is.
    """

    def __init__(self, device: str, make: Callable[[], Any] | None = None) -> None:
        self.device = device
        self._make = make or (lambda: torch.Event(device, enable_timing=True))

    def now(self) -> Any:
        event = self._make()
        event.record()
        return event

    def nanoseconds(self, marks: list[Mark]) -> list[Mark]:
        if not marks:
            return []
        marks[-1][2].synchronize()
        first, times = marks[0][1], dict[int, int]()

        def read(event: Any) -> int:
            if id(event) not in times:
                times[id(event)] = round(first.elapsed_time(event) * 1e6) if event is not first else 0
            return times[id(event)]

        return [(kind, read(since), read(until), key, count) for kind, since, until, key, count in marks]


class Clock:
    """The marks of the step that is running, and what stamps them."""

    def __init__(self, is_silent: Callable[[], bool], fail: Callable[[Exception], None]) -> None:
        self.stamps: Stamps = HostStamps()
        self.now: Callable[[], Any] = self.stamps.now
        self.log: list[Mark] = []
        self.is_silent = is_silent
        """Is this thread inside of an evaluation of ours?"""
        self.fail = fail
        self.inspect: Any = None
        """While a model is run once more to be looked at: told of the calls instead (`enter`, `leave`)."""
        self.depth = 0
        self._marked: set[int] = set()
        self._handles: list[Any] = []
        self._passes: set[int] = set()

    def use(self, stamps: Stamps) -> None:
        self.stamps, self.now = stamps, stamps.now

    def cut(self) -> list[Mark]:
        """The marks since the last cut."""
        log, self.log = self.log, []
        self._marked.clear()
        self._handles.clear()
        self._passes.clear()
        return log

    def clear(self) -> None:
        """Take the marks off the graph that is alive, and forget the step."""
        for handle in self._handles:
            handle.remove()
        self.cut()
        self.depth = 0

    def note(self, kind: int) -> None:
        stamp = self.now()
        self.log.append((kind, stamp, stamp, -1, 0))

    def enter(self, key: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        since, number = self.now(), 0
        self.depth += 1
        if torch.is_grad_enabled():
            self._mark(args)
            if kwargs:
                self._mark(tuple(kwargs.values()))
            number = autograd_count()
        self.log.append((Kind.ENTER, since, self.now(), key, number))

    def leave(self, key: int, output: Any) -> None:
        since, number = self.now(), 0
        self.depth -= 1
        if torch.is_grad_enabled():
            number = autograd_count()
            self._mark((output,) if isinstance(output, Tensor) else _inside(output))
        self.log.append((Kind.EXIT, since, self.now(), key, number))

    def _mark(self, values: tuple[Any, ...]) -> None:
        """Have the backward stamp the node that it comes to first among those that made these tensors."""
        latest, node = -1, None
        for value in values:
            if isinstance(value, Tensor) and (made_by := value.grad_fn) is not None:
                number = made_by._sequence_nr()
                if number > latest:
                    latest, node = number, made_by
        if node is not None and latest not in self._marked:
            self._marked.add(latest)
            self._handles.append(node.register_prehook(_AtNode(self, latest)))

    def at_node(self, number: int) -> None:
        since = self.now()
        if not self._handles:
            return  # of a step before, or of a graph that outlived the profile
        task = graph_task()
        if task not in self._passes:
            self._passes.add(task)
            at_end_of_backward(self._ended)
        self.log.append((Kind.NODE, since, self.now(), -1, number))

    def _ended(self) -> None:
        if self._handles:
            self.note(Kind.END)


def _inside(value: Any) -> tuple[Any, ...]:
    """The tensors of an output that is no tensor, as far as one level down."""
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, tuple | list):
        return tuple(value)
    return ()


class _AtNode:
    """A pre-hook of an autograd node."""

    __slots__ = ("clock", "number")

    def __init__(self, clock: Clock, number: int) -> None:
        self.clock = clock
        self.number = number

    def __call__(self, gradients: Any) -> None:
        try:
            self.clock.at_node(self.number)
        except Exception as error:
            self.clock.fail(error)


class TimedForward:
    """Stands in for the `forward` of a module, and notes when it begins and ends."""

    __slots__ = ("around", "clock", "inner", "key", "module")

    is_ours = True
    """Tells it from a `forward` that the user has put on the module."""

    def __init__(self, module: nn.Module, clock: Clock, key: int, around: Any = None) -> None:
        self.module = module
        self.inner: Callable[..., Any] = module.forward
        self.clock = clock
        self.key = key
        self.around = around
        """Of an outermost module: told before and after, with what it was called with."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        clock = self.clock
        if _is_compiling():
            return self.inner(*args, **kwargs)
        if clock.is_silent():
            return self._inspected(args, kwargs) if clock.inspect is not None else self.inner(*args, **kwargs)
        try:
            if self.around is not None:
                self.around.begins(args, kwargs)
            clock.enter(self.key, args, kwargs)
        except Exception as error:
            clock.fail(error)
        output = None
        try:
            output = self.inner(*args, **kwargs)
            return output
        finally:
            try:
                clock.leave(self.key, output)
                if self.around is not None:
                    self.around.ended(args, kwargs, output)
            except Exception as error:
                clock.fail(error)

    def _inspected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inspect = self.clock.inspect
        inspect.enter(self.key)
        try:
            return self.inner(*args, **kwargs)
        finally:
            inspect.leave()

    def remove(self) -> None:
        """Put back what was there; what somebody has put over it since stays."""
        names = self.module.__dict__
        if names.get("forward") is not self:
            return
        is_class_forward = isinstance(self.inner, MethodType) and self.inner.__func__ is getattr(
            type(self.module), "forward", None
        )
        if is_class_forward:
            del names["forward"]
        else:
            names["forward"] = self.inner

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module gets its own forward, as if nothing had stood in for it."""
        if isinstance(self.inner, MethodType) and self.inner.__self__ is self.module:
            twin = memo.get(id(self.module), self.module)
            return MethodType(self.inner.__func__, twin)
        return copy.deepcopy(self.inner, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.inner, MethodType) and self.inner.__self__ is self.module:
            return getattr, (self.module, "forward")
        return operator.itemgetter(0), ((self.inner,),)
