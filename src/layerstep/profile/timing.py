"""Time at the boundaries of module calls: a replaced call notes two stamps.

It costs a tenth of a pair of hooks and leaves fused kernels on. The backward needs no module hooks: autograd
runs its nodes in the falling order of the numbers that they got in the forward. So stamps at the nodes on the
boundary of a call, and the range of numbers of each call, tell which call the time belongs to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from layerstep._torch import at_end_of_backward, autograd_count, graph_task, jit_trace, node_number
from layerstep._torch.call_replacement import (
    CallReplacement,
    compiled_call_of,
    replacement_of,
    set_compiled_call,
)
from layerstep._torch.dynamo import keep_dynamo_out
from layerstep._torch.guards import functions_off
from layerstep._torch.tensors import is_tensor
from layerstep.profile.stamps import HostStamps, Mark, Stamps

__all__ = ["MOST_MARKS", "Clock", "MarkKind", "TimedCall", "TimedCompiled", "timed_call_of"]

_is_grad_enabled = torch.is_grad_enabled
_thread = threading.get_ident
_RAISED = object()


class MarkKind:
    """What happened at a mark. Plain numbers, because each module call makes two marks."""

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
    ASIDE = 7
    """A model that is trained ran without gradients, `number` times. Not part of a training step."""


MOST_MARKS = 400_000
"""The most marks of one step, about 60 MB. A step with more is left out."""


class Clock:
    """The marks of the step that is running, and what stamps them."""

    def __init__(self, is_silent: Callable[[], bool], fail: Callable[[Exception], None]) -> None:
        self.stamps: Stamps = HostStamps()
        self.now, self.then = self.stamps.now, self.stamps.then
        self.log: list[Mark] = []
        self.is_silent = is_silent
        """Is this thread evaluating something of ours?"""
        self.fail = fail
        self.inspect: Any = None
        """While a rerun inspects the model, this gets the calls instead (`enter`, `leave`)."""
        self.depth = 0
        self.generation = 0
        """Tells calls that began before everything was cleared: their ends are ignored."""
        self._turn = threading.Lock()
        self.thread = 0
        """The thread whose calls are timed. Calls of other threads meanwhile are not."""
        self.open_passes = 0
        """Backward passes that have begun and not ended."""
        self._marked: set[int] = set()
        self._handles: list[Any] = []
        self._passes: set[int] = set()

    def use(self, stamps: Stamps) -> None:
        self.stamps, self.now, self.then = stamps, stamps.now, stamps.then

    def cut(self) -> list[Mark]:
        """The marks since the last cut."""
        log, self.log = self.log, []
        self._marked.clear()
        self._handles.clear()
        self._passes.clear()
        self.open_passes = 0
        return log

    def clear(self) -> None:
        """Remove our hooks from the graph, and forget the step."""
        for handle in self._handles:
            handle.remove()
        self.cut()
        self.depth, self._turn = 0, threading.Lock()
        self.generation += 1

    def takes_turn(self) -> bool:
        """May an outermost call of this thread be timed? Not while one of another thread is."""
        if not self._turn.acquire(blocking=False):
            return False
        self.thread = _thread()
        return True

    def done(self) -> None:
        """An outermost call has ended: any thread may be timed next."""
        if self._turn.locked():
            self._turn.release()

    def note(self, kind: int) -> None:
        stamp = self.now()
        self.log.append((kind, stamp, stamp, -1, 0))

    @property
    def is_full(self) -> bool:
        return len(self.log) >= MOST_MARKS

    def set_aside(self, begin: int) -> None:
        """Set aside the outermost call whose marks begin there, and the time between it and another such
        call: neither is part of a training step.
        """
        if begin >= len(self.log):
            return
        since, until, count = self.log[begin][1], self.log[-1][2], 1
        del self.log[begin:]
        if self.log and self.log[-1][0] == MarkKind.ASIDE:
            _, since, _, _, before = self.log.pop()
            count += before
        self.log.append((MarkKind.ASIDE, since, until, -1, count))

    def enter(self, key: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        since, number = self.now(), 0
        self.depth += 1
        if self.is_full:
            return
        if _is_grad_enabled():
            with functions_off():
                self._mark(args)
                if kwargs:
                    self._mark(tuple(kwargs.values()))
            number = autograd_count()
        self.log.append((MarkKind.ENTER, since, self.then() or since, key, number))

    def leave(self, key: int, output: Any) -> None:
        since, number = self.now(), 0
        self.depth -= 1
        if self.is_full:
            return
        if _is_grad_enabled():
            number = autograd_count()
            with functions_off():
                self._mark((output,) if is_tensor(output) else _inside(output))
        self.log.append((MarkKind.EXIT, since, self.then() or since, key, number))

    def _mark(self, values: tuple[Any, ...]) -> None:
        """Let the backward pass stamp the first node it reaches among those that made these tensors."""
        latest, node = -1, None
        for value in values:
            if is_tensor(value) and (made_by := value.grad_fn) is not None:
                number = node_number(made_by)
                if number > latest:
                    latest, node = number, made_by
        if node is not None and latest not in self._marked:
            self._marked.add(latest)
            self._handles.append(node.register_prehook(_AtNode(self, latest)))

    def at_node(self, number: int) -> None:
        since = self.now()
        if not self._handles or self.is_full:
            return  # of a step before, or of a graph that outlived the profile
        task = graph_task()
        if task not in self._passes:
            self._passes.add(task)
            self.open_passes += 1
            at_end_of_backward(self._ended)
        self.log.append((MarkKind.NODE, since, self.then() or since, -1, number))

    def _ended(self) -> None:
        if self._handles:
            self.open_passes -= 1
            self.note(MarkKind.END)


def _inside(value: Any) -> tuple[Any, ...]:
    """The values in an output that is a container, one level deep."""
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


class TimedCall(CallReplacement):
    """Replaces the calls of a module, and notes when each begins and ends."""

    __slots__ = ("around", "clock", "key")

    def __init__(self, module: nn.Module, clock: Clock, key: int, around: Any = None) -> None:
        super().__init__(module)
        self.clock = clock
        self.key = key
        self.around = around
        """For an outermost module: called before and after, with its arguments."""

    def __call__(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        clock = self.clock
        if jit_trace() is not None:
            return self.inner(module, *args, **kwargs)
        if clock.is_silent():
            if clock.inspect is not None:
                return self._inspected(module, args, kwargs)
            return self.inner(module, *args, **kwargs)
        if clock.thread != _thread() if clock.depth else not clock.takes_turn():
            return self.inner(module, *args, **kwargs)
        generation = clock.generation
        self._begins(args, kwargs)
        output = _RAISED
        try:
            output = self.inner(module, *args, **kwargs)
            return output
        finally:
            if clock.generation == generation:
                self._ended(args, kwargs, output)

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clock = self.clock
        generation = clock.generation
        try:
            if self.around is not None:
                self.around.begins(args, kwargs)
            if clock.generation == generation:  # else that was the last step
                clock.enter(self.key, args, kwargs)
        except Exception as error:
            clock.fail(error)

    def _ended(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        clock = self.clock
        try:
            clock.leave(self.key, output)
            if self.around is not None:
                self.around.ended(args, kwargs, output, raised=output is _RAISED)
            if not clock.depth:
                clock.done()
        except Exception as error:
            clock.fail(error)

    def _inspected(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inspect = self.clock.inspect
        inspect.enter(self.key)
        try:
            return self.inner(module, *args, **kwargs)
        finally:
            inspect.leave()


class TimedCompiled(TimedCall):
    """The same for a module that was compiled in place: its calls run what `module.compile()` put on it."""

    __slots__ = ("_compiled",)

    def install(self) -> None:
        module = self.module()
        if module is not None:
            compiled = compiled_call_of(module)
            self._compiled = compiled
            self.inner = lambda module, *args, **kwargs: compiled(*args, **kwargs)
            set_compiled_call(module, _Bound(self))

    def remove(self) -> None:
        """Put back what was there, unless something has replaced ours since."""
        module = self.module()
        now = compiled_call_of(module)
        if module is not None and isinstance(now, _Bound) and now.timed is self:
            set_compiled_call(module, self._compiled)


class _Bound:
    """What a compiled module calls instead."""

    __slots__ = ("timed",)

    def __init__(self, timed: TimedCompiled) -> None:
        self.timed = timed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.timed.module()
        assert module is not None  # it is being called
        return self.timed(module, *args, **kwargs)


def timed_call_of(module: nn.Module, clock: Clock) -> TimedCall | None:
    """The replaced call by which this clock times the module."""
    compiled = compiled_call_of(module)
    found: Any = compiled.timed if isinstance(compiled, _Bound) else replacement_of(module)
    while isinstance(found, TimedCall):
        if found.clock is clock:
            return found
        found = found.inner
    return None


for _function in (TimedCall._begins, TimedCall._ended, TimedCall._inspected):
    keep_dynamo_out(_function, callees=_function is not TimedCall._inspected)
keep_dynamo_out(TimedCall.__call__, callees=False)
keep_dynamo_out(_Bound.__call__, callees=False)
