"""Backward: the module calls of a forward, in the order of the backward pass.

In the forward, each call notes the number of its first autograd node (torch counts them) and puts a hook on
the tensors of its output. When a gradient arrives there, the nodes of the call are found from the node that
is running: those that are no older than the call. The gradient of an input is the sum over the edges that
leave these nodes towards it, so that a residual branch past the module is not mixed in. Nothing is put into
the graph, and no node is held beyond the pass, so that the graph lives no longer than in a bare run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import nn

from layerstep._torch import (
    at_end_of_backward,
    autograd_count,
    current_node,
    graph_task,
    node_number,
    will_run,
)
from layerstep._torch.guards import functions_off
from layerstep.calls.set_gradients import Key, SetGradients

__all__ = ["BEGAN_BEFORE", "Backward", "Call", "Gradients", "State"]

BEGAN_BEFORE = "it ran already when the point was set; the next call is followed"
"""The first autograd node of such a call is not known."""

Gradients = Sequence[torch.Tensor | None]


class State(Enum):
    """How far the backward pass is with a call."""

    WAITING = "not reached"
    ENTERED = "running"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Call:
    """A module call that the backward pass may go through."""

    module: nn.Module
    forward: int
    start: int
    parent: Call | None
    depth: int
    inputs: tuple[Key | None, ...]
    end: int = 0
    """The number of the first node after the call."""
    made_at: tuple[str, int] = ("", 0)
    """File and line of the forward that made the call."""
    outputs: int = 0
    unseen: str = ""
    """Why no gradient can be seen to arrive, if none can."""
    state: State = State.WAITING
    task: int = -1
    grad_out: list[torch.Tensor | None] = field(default_factory=list)
    grad_in: list[torch.Tensor | None] = field(default_factory=list)
    """None until the call is done: a part of a gradient is never shown."""
    sums: list[torch.Tensor | None] = field(default_factory=list)
    """What has gone out of the module so far."""
    left: int = 0
    """How many of the nodes at the border of the call have not run yet."""
    is_open: bool = False
    """Its own nodes report, too."""
    seen: set[Any] = field(default_factory=set)
    handles: list[Any] = field(default_factory=list)

    def reset(self) -> None:
        """As before the backward pass came."""
        for handle in self.handles:
            handle.remove()
        self.state, self.task, self.left = State.WAITING, -1, 0
        self.let_go()
        self.seen, self.handles, self.is_open = set(), [], False

    def let_go(self) -> None:
        """Hold no gradient."""
        self.grad_out = [None] * self.outputs
        self.grad_in, self.sums = [None] * len(self.inputs), [None] * len(self.inputs)

    def stack(self) -> Iterator[Call]:
        """This call and those that it was made in."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent


class _Open(threading.local):
    """The calls that are running in this thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


class Backward:
    """Follows the backward pass for a session.

    `began` and `ended` are told of each backward pass, `entered` and `done` of each call in it. Those two
    return the gradients to go on with, if not the same: of the output, of the inputs. All calls are followed:
    one that was not could not be stepped to later, because its nodes may have run by then.
    """

    def __init__(
        self,
        *,
        began: Callable[[], None],
        entered: Callable[[Call], Gradients | None],
        done: Callable[[Call], Gradients | None],
        ended: Callable[[], None],
    ) -> None:
        self._began, self._entered, self._done, self._ended = began, entered, done, ended
        self._open = _Open()
        self._groups: dict[Key, list[tuple[Call, int]]] = {}
        self._hooks: list[tuple[Key, Any]] = []
        self._borders: dict[Any, list[tuple[Call, list[tuple[int, Key]]]]] = {}
        """Nodes of the running pass at which calls end, with the edges that leave them there."""
        self._below: dict[Key, Any] = {}
        """The nodes of the running pass that gradients of inputs go to."""
        self._set = SetGradients()
        self._tasks: dict[int, list[Call]] = {}
        self.calls: list[Call] = []
        """Every call of this forward, in the order in which they ended."""

    # --- in the forward ---

    def enter(self, module: nn.Module, values: list[torch.Tensor], *, forward: int) -> None:
        """A module is called, with these tensors."""
        if not torch.is_grad_enabled():
            values = []
        open_calls = self._open.calls
        parent = open_calls[-1] if open_calls else None
        depth = parent.depth + 1 if parent is not None else 1
        call = Call(module, forward, autograd_count(), parent, depth, tuple(map(_key, values)))
        open_calls.append(call)

    def leave(self, module: nn.Module, values: list[torch.Tensor], *, made_at: tuple[str, int]) -> None:
        """It has returned these; one that raised has left its call open, and is dropped here."""
        open_calls = self._open.calls
        if not any(call.module is module for call in open_calls):
            late = Call(module, 0, autograd_count(), None, 1, (), unseen=BEGAN_BEFORE)
            self.calls.append(late)
            return
        while open_calls[-1].module is not module:
            open_calls.pop()
        call = open_calls.pop()
        call.made_at, call.outputs, call.end = made_at, len(values), autograd_count()
        call.reset()
        self.calls.append(call)
        keys = [_key(value) for value in values]
        if not any(keys):
            call.unseen = _why_unseen(module, values)
        for index, (key, value) in enumerate(zip(keys, values, strict=True)):
            if key is not None:
                self._follow(key, value, call, index)

    def _follow(self, key: Key, value: torch.Tensor, call: Call, index: int) -> None:
        """One hook a tensor: a child and its parent return the same one, and the parent is entered first."""
        group = self._groups.get(key)
        if group is not None:
            group.append((call, index))
            return
        group = self._groups[key] = [(call, index)]
        hook = partial(self._arrive, key, group)
        hook.__torch_unserializable__ = True  # type: ignore[attr-defined]  # saving the tensor says nothing of it
        with functions_off():
            self._hooks.append((key, value.register_hook(hook)))

    def begin_again(self, module: nn.Module) -> None:
        """The outermost call of this thread, which is of this module, begins again: forget what it called."""
        open_calls = self._open.calls
        outermost = next((call for call in open_calls if call.module is module), None)
        if outermost is None:
            outermost = next((call for call in reversed(self.calls) if call.module is module), None)
        if outermost is None:
            return
        self._drop({id(call) for call in self.calls if any(each is outermost for each in call.stack())})
        open_calls[:] = [outermost]

    def _drop(self, old: set[int]) -> None:
        for key, handle in self._hooks:
            group = self._groups.get(key, [])
            if all(id(call) in old for call, _ in group):
                handle.remove()
                self._groups.pop(key, None)
        self._hooks = [(key, handle) for key, handle in self._hooks if key in self._groups]
        self.calls = [call for call in self.calls if id(call) not in old]

    def forget(self) -> None:
        """Take all hooks off, and forget the calls."""
        for _, handle in self._hooks:
            handle.remove()
        for call in self.calls:
            call.reset()
        self._hooks.clear()
        self._groups.clear()
        self._tasks.clear()
        self._borders.clear()
        self._below.clear()
        self._open.calls.clear()
        self.calls.clear()

    def forget_before(self, forwards: int) -> None:
        """Keep the calls of that many forwards, counted by their outermost calls."""
        if self._open.calls or graph_task() != -1:
            return
        self._open.calls.clear()
        ends = [index for index, call in enumerate(self.calls) if call.parent is None]
        if len(ends) < forwards:
            return
        self._drop(set(map(id, self.calls[: ends[-forwards] + 1])))

    # --- in the backward ---

    def _arrive(self, key: Key, group: list[tuple[Call, int]], gradient: torch.Tensor) -> torch.Tensor | None:
        before = gradient
        gradient = self._set.arriving(key, gradient)
        for call, index in reversed(group):
            gradient = self._take(call, index, gradient)
        gradient = self._set.arriving(key, gradient)  # a module that hands on its input has set it here
        return gradient if gradient is not before else None

    def _take(self, call: Call, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient has arrived at a call; what the pass goes on with."""
        task = graph_task()
        if call.task not in (-1, task):
            call.reset()  # a second pass through a graph that was kept
        if task not in self._tasks:
            if not self._tasks:
                self._began()
            self._tasks[task] = []
            at_end_of_backward(partial(self._end, task))
        if call.task == -1:
            call.task = task
            self._tasks[task].append(call)
        call.grad_out[index] = gradient
        is_new = call.state is State.WAITING
        call.state = State.ENTERED
        self._walk(call, current_node())
        instead = self._entered(call) if is_new else None
        if instead is not None and (new := instead[index]) is not None:
            gradient = call.grad_out[index] = new
        if call.left == 0:
            self._finish(call)
        return gradient

    def _walk(self, call: Call, node: Any) -> None:
        """Find the nodes of the call below this one, and wait for those at its border."""
        waiting = [node] if node is not None else []
        while waiting:
            node = waiting.pop()
            if node in call.seen or not _is_inside(node, call):
                continue
            call.seen.add(node)
            edges = []
            for place, (below, output) in enumerate(node.next_functions):
                if below is None:
                    continue
                if _is_inside(below, call):
                    waiting.append(below)
                else:
                    edge = _edge(below, output)
                    edges.append((place, edge))
                    if edge in call.inputs:
                        self._below[edge] = below
            if edges and will_run(node):
                call.left += 1
                self._wait_for(node, call, edges)
        if not call.seen:
            self._pass_through(call)

    def _wait_for(self, node: Any, call: Call, edges: list[tuple[int, Key]]) -> None:
        """One hook a node: where a child and its parent end, the child is done first."""
        border = self._borders.get(node)
        if border is None:
            border = self._borders[node] = []
            call.handles.append(node.register_hook(partial(self._cross, border)))
        border.append((call, edges))

    def _pass_through(self, call: Call) -> None:
        """A module that hands on its input: the same tensor goes in and out."""
        for place, key in enumerate(call.inputs):
            for other, index in self._groups.get(key, ()) if key is not None else ():
                if other is call:
                    call.sums[place] = call.grad_out[index]

    def _cross(self, border: list[tuple[Call, list[tuple[int, Key]]]], grad_in: Any, grad_out: Any) -> None:
        """A node has run at which calls end: what goes out of each module there?"""
        for call, edges in sorted(border, key=lambda entry: -entry[0].depth):
            for place, edge in edges:
                for index, key in enumerate(call.inputs):
                    if key == edge and grad_in[place] is not None:
                        before = call.sums[index]
                        call.sums[index] = grad_in[place] if before is None else before + grad_in[place]
            call.left -= 1
            if call.left == 0 and call.state is State.ENTERED:
                self._finish(call)

    def open(self, call: Call, arrived: Callable[[Call, str, tuple[Any, ...]], Gradients | None]) -> None:
        """Be told of every autograd node of the call itself, not of its children's, before it runs.

        `arrived` returns the gradients to go on with, if not the same.
        """
        if call.is_open:
            return
        call.is_open = True
        inner = [(other.start, other.end) for other in self.calls if other.parent is call]
        own = [
            node
            for node in call.seen
            if not any(start <= node_number(node) < end for start, end in inner) and will_run(node)
        ]
        for node in own:
            call.handles.append(node.register_prehook(partial(arrived, call, node.name())))

    def _finish(self, call: Call) -> None:
        call.state, call.grad_in = State.DONE, self._set.leaving(call, call.sums)
        known, below = list(call.grad_in), {key: self._below.get(key) for key in call.inputs if key}
        instead = self._done(call)
        if instead is not None:
            for key in self._set.keep(call, known, instead):
                if key not in self._groups and (node := below[key]) is not None:
                    call.handles.append(node.register_prehook(partial(self._before_node, key)))
        call.let_go()  # or else every gradient of the pass would stay in memory until the next one
        call.seen.clear()

    def _before_node(self, key: Key, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The sum for an input that no followed module has made is whole here."""
        place = key[2]
        if gradients[place] is None:
            return None
        new = self._set.arriving(key, gradients[place])
        return (*gradients[:place], new, *gradients[place + 1 :])

    def _end(self, task: int) -> None:
        """The pass is over: what was begun and has no end of its own is done now."""
        for call in self._tasks.pop(task, []):
            if call.state is State.ENTERED:
                self._finish(call)
            for handle in call.handles:
                handle.remove()
            call.handles.clear()
            call.seen.clear()
        if not self._tasks:
            self._borders.clear()
            self._below.clear()
            self._set.clear()
            self._ended()


def _key(tensor: torch.Tensor) -> Key | None:
    """The edge of the graph at which the gradient of a tensor arrives; None if none does."""
    with functions_off():
        if not tensor.requires_grad:
            return None
        node = tensor.grad_fn
        if node is None:
            return "leaf", id(tensor), 0
        return "node", node_number(node), tensor.output_nr


def _edge(node: Any, output: int) -> Key:
    variable = getattr(node, "variable", None)
    return ("leaf", id(variable), 0) if variable is not None else ("node", node_number(node), output)


def _is_inside(node: Any, call: Call) -> bool:
    """Was this node made during the call? Those that accumulate into leaves have no number of their own."""
    return getattr(node, "variable", None) is None and node_number(node) >= call.start


def _why_unseen(module: nn.Module, values: list[torch.Tensor]) -> str:
    if not values:
        return "its output holds no tensor that can be seen"
    if not torch.is_grad_enabled():
        return "it ran without gradients"
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return "its output needs no gradient: nothing in it or before it takes one"
    return "its output needs no gradient: it was detached, or made of integers"
