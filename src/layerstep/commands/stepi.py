from __future__ import annotations

from layerstep.arguments import Given
from layerstep.commands.step import COUNT, step_ops
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("stepi", "si", group="run", args=COUNT, examples=("stepi", "stepi 3"), repeats=True)
def stepi(session: Session, given: Given) -> Resume:
    """Run until the next aten op has finished.

    Like `step op`, but one level lower: the ops that torch runs (`aten.native_layer_norm`), with the casts of
    autocast. This level is below autograd, so `requires_grad` of a result is still False. `stepi` also works
    in the backward pass, and names the autograd node of each op there. With N it goes on N ops.
    """
    return step_ops(session, Kind.KERNEL, given.n)
