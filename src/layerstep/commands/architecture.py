from __future__ import annotations

import torch

from layerstep.arguments import Given, Path
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.gradients.no_gradient import biases_before_norms
from layerstep.layers.architecture import Forward, describe
from layerstep.layers.architecture_view import MOST_BLOCKS, architecture_view
from layerstep.profile.flops import count_flops
from layerstep.registry import command
from layerstep.tensors.observing import observing
from layerstep.views import View


@command(
    "architecture",
    group="look",
    args=Path(optional=True),
    examples=("architecture", "architecture blocks"),
)
def architecture(session: Session, given: Given) -> View:
    """Show what the model is made of, and what is odd about it.

    The answer has the parameters, how many are trainable, bytes, layers by class, dtypes and devices, and
    each block's share of the parameters and FLOPs. It names modules that the forward never calls, biases that
    a norm removes, and weights that are NaN or constant, or whose scale makes most models explode or fade.
    Zeros may be meant, as in LoRA. At a stop, layerstep runs the outermost call once more on copies, to find
    the FLOPs, the shapes, and which modules are not called. A block with more than half of the parameters is
    shown by its parts. Equal neighbours share one row.
    """
    if session.run.models.main is None:
        raise UserError("no model has run yet", "`continue` starts the run")
    forward, note = _forward(session)
    with observing():
        found = describe(
            session.run.models, given.path, forward=forward, removed_biases=biases_before_norms(session)
        )
        return architecture_view(found, most=min(MOST_BLOCKS, session.run.config.max_lines), note=note)


def _forward(session: Session) -> tuple[Forward | None, str]:
    """What the call that runs here does, and why that is not known."""
    stack = session.run.pause.stack if session.run.pause is not None else []
    outer = next((f for f in reversed(stack) if f.module is not None and f.call is None), None)
    if outer is None or outer.module is None:
        return None, "stop in a forward to see FLOPs, shapes and what is not called"
    forward = Forward()
    try:
        counted = count_flops(
            session,
            outer.module,
            args=outer.args,
            kwargs=outer.kwargs,
            backward=torch.is_grad_enabled(),
            seen=forward.note,
        )
    except UserError as error:
        return None, f"no FLOPs and shapes: {error}"
    forward.flops = counted.forward + counted.backward
    return forward, ""
