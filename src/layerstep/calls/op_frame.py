"""Where an operation ran: the frame on top of the module stack, the modules and the node that it is in."""

from __future__ import annotations

from types import FrameType

from torch import nn

from layerstep._torch import (
    call_frames,
    called_module,
    current_node,
    is_wrapper,
)
from layerstep.calls.events import Event
from layerstep.calls.operations import Op
from layerstep.calls.stack import Frame
from layerstep.module_paths.models import Models
from layerstep.tensors.containers import tensors_of

__all__ = ["node_name", "op_frame", "running_modules"]


def op_frame(event: Event, models: Models, *, depth: int = 0) -> Frame:
    """An operation on top of the modules that it ran in: its tensors are `inp`, its result is `out`."""
    op: Op = event.op
    return Frame(
        models,
        event.module,
        args=tuple(tensors_of((op.args, op.kwargs))),
        kwargs=op.kwargs,
        state="op done",
        output=op.result,
        caller=op.caller,
        depth=depth,
        call=event.call,
        op=op,
    )


def running_modules(frame: FrameType | None) -> list[nn.Module]:
    """The modules that are running, innermost first; wrappers aside."""
    modules = [called_module(call)[0] for call in call_frames(frame)]
    return [module for module in modules if not is_wrapper(module)]


def node_name() -> str:
    node = current_node()
    return node.name() if node is not None else ""
