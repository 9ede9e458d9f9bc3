"""The autograd graph and the pass that runs through it. Seen on torch 2.13.0."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

__all__ = [
    "NO_BACKWARD",
    "at_end_of_backward",
    "autograd_count",
    "backward_roots",
    "current_node",
    "dtype_of_output",
    "graph_task",
    "is_in_backward",
    "node_number",
    "run_backward",
    "shape_of_output",
    "variable_of",
    "will_run",
]


graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The number of the backward pass that runs in this thread, or `NO_BACKWARD`. Fallback: always the latter."""
NO_BACKWARD = -1


def is_in_backward() -> bool:
    """Is an autograd graph task running in this thread? Then a forward is a recomputation.

    Fallback: no, so that a recomputed module stops like any other.
    """
    return graph_task() != NO_BACKWARD


_count: Callable[[], int] | None = getattr(torch.autograd, "_get_sequence_nr", None)


def autograd_count() -> int:
    """The number that the next autograd node of this thread gets. Torch counts nodes as it makes them.

    Fallback: 0. Then a module's nodes cannot be told from those before it, and the gradient of its input is
    that of the whole graph below it.
    """
    return _count() if _count is not None else 0


def node_number(node: Any) -> int:
    """The place of a node among those of its thread, in the order they were made. Fallback: 0."""
    try:
        return node._sequence_nr()  # type: ignore[no-any-return]
    except AttributeError:
        return 0


def current_node() -> Any:
    """The autograd node that is running; in a tensor's hook, the one that made the tensor.

    Fallback: None. Then a module is entered in backward and done at once, without a gradient of its input.
    """
    node = getattr(torch._C, "_current_autograd_node", None)
    return node() if node is not None else None


def backward_roots(frame: FrameType | None) -> list[Any]:
    """The nodes that the backward pass around this frame begins with.

    The first operation of a pass may belong to a later node: the node of `a + b` runs none.
    Fallback: the node that is running, also in a device's own thread, where no frame tells of the pass.
    """
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    while run is not None and frame is not None:
        if frame.f_code is run.__code__:
            given = frame.f_locals.get("t_outputs", ())
            return [getattr(each, "node", None) or getattr(each, "grad_fn", None) for each in given]
        frame = frame.f_back
    return [current_node()]


def will_run(node: Any) -> bool:
    """Does this backward pass run this node? Fallback: yes, and the end of the pass settles it."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except (AttributeError, RuntimeError):
        return True


def shape_of_output(node: Any, place: int = 0) -> tuple[int, ...] | None:
    """The shape of a tensor that a node made in the forward. Fallback: None, and shapes are not compared."""
    try:
        return tuple(int(size) for size in node._input_metadata[place].shape)
    except Exception:  # no such attribute, a symbolic or a nested shape
        return None


def dtype_of_output(node: Any, place: int = 0) -> torch.dtype | None:
    """The dtype of a tensor that a node made in the forward. Fallback: None."""
    try:
        return node._input_metadata[place].dtype  # type: ignore[no-any-return]
    except Exception:  # no such attribute
        return None


def variable_of(node: Any) -> torch.Tensor | None:
    """The tensor that a leaf of the graph adds its gradient to; None for every other node."""
    return getattr(node, "variable", None) if node is not None else None


def run_backward(tensors: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
    """Run a backward pass so that function modes see its parts. Fallback: they see one call."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None:
        torch.autograd.backward(tensors, gradients)
        return
    run(tuple(tensors), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the running backward pass ends, in its thread.

    Fallback: never. Calls that have no end of their own then wait for the next forward.
    """
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is not None:
        engine.queue_callback(callback)
