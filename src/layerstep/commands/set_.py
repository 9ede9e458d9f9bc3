from __future__ import annotations

from layerstep.arguments import Expr, Flag, Given
from layerstep.edits.edits import Edits
from layerstep.edits.gradients import Gradient
from layerstep.edits.target import Target
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice

__all__ = ["GRADIENT", "gradient_of", "split_assignment"]

GRADIENT = (
    Flag("through", "a constant passes the gradient on as if nothing was replaced"),
    Flag("cut", "a constant gets no gradient at all"),
)


def gradient_of(given: Given) -> Gradient:
    """The gradient of a constant, as the options say."""
    if given.through and given.cut:
        raise BadArguments("--through and --cut exclude each other")
    return "through" if given.through else "cut" if given.cut else "stop"


def split_assignment(text: str) -> tuple[str, str]:
    """Target and expression of `out[0] = out[0] * 2`; no target in an expression alone."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "=" and not depth:
            is_comparison = text[at + 1 : at + 2] == "=" or text[at - 1 : at] in ("=", "!", "<", ">")
            return ("", text) if is_comparison else (text[:at].strip(), text[at + 1 :].strip())
    return "", text


@command(
    "set",
    group="change",
    args=(Expr("TARGET = EXPR", name="text"), *GRADIENT),
    examples=("set out = out * 0", "set head.weight[0] = 0"),
)
def set_(session: Session, given: Given) -> Notice:
    """Change a value of this call or this pass, or in a weight.

    TARGET is `out`, `inp` or `kwargs.NAME`, or a part of it: `out[0, 3]`, `out.logits`. It is replaced in
    what this call is given or returns. `inp` and `kwargs` can be set at the entry of a module, `out` at its
    exit. The old tensor is not written to.
    At a stop in the backward pass, TARGET is `grad` or a part of it: the gradient that the pass goes on with.
    At the entry of a module in the backward pass, that is `grad_out`; at `break PATH backward` it is
    `grad_in`. Gradients from other branches are still added to it.
    Or TARGET is a parameter, a buffer or a gradient: `head.weight[0]`, `head.bias.grad`. That is written, and
    a copy is kept for `undo`.
    EXPR is Python and may use the old value; autograd follows it. A constant stops the gradient: the replaced
    value gets zeros.
    """
    target, expression = split_assignment(given.text)
    if not target or not expression:
        raise BadArguments("set needs TARGET = EXPR", "set out = out * 0")
    edits, line, place = session.instruments.get(Edits), f"set {given.typed}", Target.parse(target)
    if place.is_of_a_call:
        return edits.set_here(place, expression, line=line, gradient=gradient_of(given))
    if place.is_of_a_backward:
        return edits.set_gradient_here(place, expression, line=line)
    return edits.set_weight(place, expression, line=line)
