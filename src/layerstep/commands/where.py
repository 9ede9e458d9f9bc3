from __future__ import annotations

from layerstep.arguments import Given
from layerstep.calls.backward import Call
from layerstep.calls.operations import Op
from layerstep.calls.stack import Frame
from layerstep.engine.session import Session
from layerstep.ops.views import operands_of
from layerstep.process.frames import location_at
from layerstep.registry import command
from layerstep.tensors.shapes import shape_line
from layerstep.views import Stack, StackFrame

__all__ = ["stack_row"]


@command("where", "w", "bt", group="look", args=(), examples=("where",), needs_pause=True, only_looks=True)
def where(session: Session, given: Given) -> Stack:
    """Show the modules that are running, innermost first.

    For each it shows its class, the shapes of inputs and outputs, and the line that called it. `up`, `down`
    and `frame N` select another one. After `step op` the op is on top. In the backward pass it shows the
    gradients of output and input, and the line of the forward that made the call.
    """
    pause = session.run.pause
    assert pause is not None
    frames = tuple(
        stack_row(index, frame, selected=index == pause.selected) for index, frame in enumerate(pause.stack)
    )
    return Stack(frames)


def stack_row(index: int, frame: Frame, *, selected: bool) -> StackFrame:
    if frame.op is not None:
        return _op_row(index, frame, frame.op, selected=selected)
    if frame.call is not None:
        return _backward_row(index, frame, frame.call, selected=selected)
    inputs = [shape_line(value) for value in frame.args[:4]]
    inputs += [f"{key}={shape_line(value)}" for key, value in list(frame.kwargs.items())[:4]]
    place, _, code = frame.location.partition("  ")
    return StackFrame(
        index=index,
        path=frame.path or "(no module)",
        kind=type(frame.module).__name__ if frame.module is not None else "",
        state=frame.state,
        inputs=", ".join(inputs),
        output=shape_line(frame.output) if frame.has_output else "",
        location=place,
        code=code,
        selected=selected,
    )


def _op_row(index: int, frame: Frame, op: Op, *, selected: bool) -> StackFrame:
    """An operation lies on top of the module that it ran in."""
    place, _, code = frame.location.partition("  ")
    inputs = [f"{name}={shape_line(value)}" for name, value in operands_of(op)[:4]]
    return StackFrame(
        index=index,
        path=op.name,
        kind=op.node or ("aten op" if op.is_kernel else "op"),
        state="done",
        inputs=", ".join(inputs),
        output=shape_line(op.result),
        location=place,
        code=code,
        selected=selected,
    )


def _backward_row(index: int, frame: Frame, call: Call, *, selected: bool) -> StackFrame:
    """In the backward pass: the gradients that came and those that go on, and the line of the forward."""
    arrived = [shape_line(gradient) for gradient in call.grad_out if gradient is not None]
    known = [shape_line(gradient) for gradient in call.grad_in if gradient is not None]
    place, _, code = location_at(*call.made_at).partition("  ")
    return StackFrame(
        index=index,
        path=frame.path,
        kind=type(frame.module).__name__,
        state=frame.state,
        inputs=", ".join(arrived),
        output=", ".join(known),
        location=place,
        code=code,
        selected=selected,
    )
