from __future__ import annotations

import torch

from layerstep.analysis.present import tensor_view
from layerstep.analysis.shapes import tensors_in
from layerstep.analysis.tensor import summarize
from layerstep.commands.inspect import value_of
from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.views import Fields, Span, Text, View

MOST_TENSORS = 20


@command(
    "stats",
    group="look",
    usage="[X]",
    examples=("stats out", "stats blocks.0.attn.qkv.weight", "stats inp"),
    complete="expression",
)
def stats(session: Session, rest: str) -> View:
    """Show statistics of a tensor, or of each one in a container.

    All elements are looked at. Mean, std, minimum and maximum are of the finite elements; std is that
    of the population.
    """
    value = value_of(session, rest)
    leaves = tensors_in(value, most=MOST_TENSORS)
    if isinstance(value, torch.nn.Module):
        leaves = [(name, parameter.detach()) for name, parameter in value.named_parameters()][:MOST_TENSORS]
    if not leaves:
        raise UserError(f"no tensor in {rest or 'it'}", f"it is a {type(value).__name__}")
    items: list[tuple[str, View]] = []
    for place, tensor in leaves:
        items += [(place, tensor_view(tensor)), ("", Text(_more(tensor)))]
    return Fields((Span(rest or "out", "code"),), tuple(items))


def _more(tensor: torch.Tensor) -> str:
    """What the tensor line leaves out."""
    with observing():
        stats = summarize(tensor).stats
    if stats is None:
        return ""
    infinities = f"  +inf {stats.posinf:,} -inf {stats.neginf:,}" if stats.posinf or stats.neginf else ""
    sizes = f"mean |x| {_number(stats.abs_mean)}  l2 {_number(stats.l2)}"
    return f"{sizes}  zeros {stats.zero:,} of {stats.count:,}{infinities}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
