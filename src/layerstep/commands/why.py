from __future__ import annotations

import torch

from layerstep.arguments import Expr, Form, Given, Text
from layerstep.crashes.raised import Raised
from layerstep.crashes.views import crash_view
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import UserError
from layerstep.gradients.no_gradient import missing_gradients
from layerstep.nonfinite.catching import search_of
from layerstep.nonfinite.views import origin_view
from layerstep.registry import command
from layerstep.tensors.finite import Bad, count_bad, why_unread
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Notice, Table, View

MOST = 20


@command(
    "why",
    group="look",
    args=(Expr("EXPR", optional=True), Form("shape"), Form("none", Text("NAME", optional=True))),
    examples=("why out", "why none"),
)
def why(session: Session, given: Given) -> View:
    """Say where a NaN or Inf was born; explain a crash.

    `why EXPR` traces a value that is not finite back to the operation that made it, and shows its operands
    and its line. For this it runs the call again on copies. `catch nonfinite` keeps the beginning of every
    call; without it, the rerun takes the inputs as they are now. `why` alone explains what was caught last,
    or the exception at this stop; so does `why shape`. `why none` lists parameters without a gradient, and
    why.
    """
    if given.form == "none":
        return _none(session, given.name)
    cause = session.run.pause.stop.cause if session.run.pause is not None else None
    crash = cause.crash if isinstance(cause, Raised) else None
    if given.form == "shape" or (not given.expr and crash is not None):
        if crash is None:
            raise UserError("nothing was raised here", "`catch exception` stops where it is")
        return crash_view(crash)
    hunt, limit = search_of(session), session.run.config.sample_above
    if not given.expr and hunt.found is not None:
        return origin_view(hunt.found, session.run.models, limit=limit)
    text = given.expr or "out"
    tensor, bad, unread = _bad_value(session, text)
    if tensor is None and unread:
        return Notice(f"{text} cannot be read here: {unread}", level="warn")
    if tensor is None:
        return Notice(f"{text} is finite", level="good")
    frame = session.run.pause.frame if session.run.pause is not None else None
    origin = hunt.trace(tensor, frame, f"{text} has {bad}")
    hunt.found = origin
    return origin_view(origin, session.run.models, limit=limit)


def _bad_value(session: Session, text: str) -> tuple[torch.Tensor | None, Bad, str]:
    """The first tensor that is not finite, what is bad in it; and why one could not be read."""
    value = value_of(session.prompt, text)
    tensors = [tensor for _, tensor in tensors_in(value, most=1000)]
    if not tensors:
        raise UserError(f"{text} holds no tensor", "`why out`")
    with observing():
        for tensor in tensors:
            bad = count_bad(tensor)
            if bad.any:
                return tensor, bad, ""
        unread = next(filter(None, map(why_unread, tensors)), "")
    return None, Bad(), unread


def _none(session: Session, name: str) -> View:
    missing = [each for each in missing_gradients(session, None) if name in each.name]
    if not missing:
        text = (
            f"no parameter without a gradient has {name!r} in its name" if name else "every parameter has one"
        )
        return Notice(text, level="good")
    rows = tuple((each.name, each.kind, each.reason) for each in missing[:MOST])
    left = len(missing) - MOST
    columns = (Column("parameter", "path"), Column("is"), Column("because"))
    return Table(columns, rows, note=f"{left:,} more; `grad none` groups them" if left > 0 else "")
