from __future__ import annotations

from layerstep.arguments import Form, Given, Number
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command

__all__ = ["COUNT", "step_ops"]

COUNT = Number("N", least=1, default=1, what="count")


def step_ops(session: Session, kind: Kind, count: int) -> Resume:
    """To the N-th next op of the module that the run is stopped in, or to its end."""
    pause = session.run.pause
    if pause is None or not pause.stack:
        raise UserError("nothing has stopped yet", "`break WHERE enter`, then `continue`")
    frame = pause.stack[0]
    if pause.depth == 0:
        raise UserError("no module is running here", "`break WHERE enter`, then `continue`")
    in_backward = frame.call is not None
    if in_backward and kind is Kind.OP:
        raise UserError("in the backward pass the user's code calls no ops", "`stepi` steps by aten ops")
    if pause.phase is not None and pause.phase.is_end and pause.depth <= 1 and not in_backward:
        raise UserError(f"nothing encloses {frame.path}: its ops are done", "`continue`, or `into` another")
    return Resume(kind, count)


@command(
    "step",
    "s",
    group="run",
    args=(COUNT, Form("op", COUNT), Form("line", COUNT)),
    examples=("step", "step 3", "step op", "step op 3", "step line"),
    repeats=True,
)
def step(session: Session, given: Given) -> Resume:
    """Run until the next module, op or line.

    `step` stops when the next module has computed its output, at any depth. With N it goes on N modules. An
    empty line repeats it.
    `step op` stops after the next torch function that the code calls: `F.layer_norm`, `softmax`, `@`. It
    stays in the module of this stop and its children. After a module's exit it goes on in the module around
    it. `out` is the result of the op, `inp` its tensors. If no op is left, it stops at the module's exit.
    `stepi` does the same with aten ops.
    `step line` stops at the next line of the program's own code: in a function that it calls, in the forward
    of a module, or in the caller. Torch, Python's own library and installed packages run without a stop.
    """
    if given.form == "op":
        return step_ops(session, Kind.OP, given.n)
    if given.form == "line":
        return Resume(Kind.LINE, given.n)
    return Resume(Kind.STEP, given.n)
