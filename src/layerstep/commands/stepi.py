from __future__ import annotations

from layerstep.arguments import Given
from layerstep.commands.step import COUNT, step_ops
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.registry import command


@command("stepi", "si", group="run", args=COUNT, examples=("stepi", "stepi 3"), repeats=True)
def stepi(session: Session, given: Given) -> Resume:
    """Run until the next aten op has finished.

    As `step op`, one level below it: what torch makes of the code (`aten.native_layer_norm`), with the casts
    of autocast. There a result does not say yet that it needs a gradient: that is written on it above. In
    the backward pass too, where the autograd node of each op is named. With N, that many ops.
    """
    return step_ops(session, Kind.KERNEL, given.n)
