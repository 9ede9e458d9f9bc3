from __future__ import annotations

import torch

from layerstep.analysis.present import tensor_view
from layerstep.analysis.tensor import summarize, tensors_in
from layerstep.commands.inspect import value_of
from layerstep.engine.guard import observing
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.views import Column, Fields, Span, Table, Text, View

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
    if len(leaves) == 1:
        place, tensor = leaves[0]
        label = (rest or "out") + place
        return Fields((Span(label, "code"),), (("", tensor_view(tensor)), ("", Text(_more(tensor)))))
    return _table(leaves)


def _more(tensor: torch.Tensor) -> str:
    """What the tensor line leaves out."""
    with observing():
        stats = summarize(tensor).stats
    if stats is None:
        return ""
    infinities = f"  +inf {stats.posinf:,} -inf {stats.neginf:,}" if stats.posinf or stats.neginf else ""
    sizes = f"mean |x| {_number(stats.abs_mean)}  l2 {_number(stats.l2)}"
    return f"{sizes}  zeros {stats.zero:,} of {stats.count:,}{infinities}"


def _table(leaves: list[tuple[str, torch.Tensor]]) -> Table:
    columns = tuple(
        Column(name, right=name not in ("tensor", "shape"))
        for name in ("tensor", "shape", "mean", "std", "min", "max", "|mean|", "l2", "nan", "inf", "zero")
    )
    return Table(columns, tuple(_row(place, tensor) for place, tensor in leaves))


def _row(place: str, tensor: torch.Tensor) -> tuple[str, ...]:
    with observing():
        summary = summarize(tensor)
    shape = f"{summary.dtype}{list(summary.shape)}"
    stats = summary.stats
    if stats is None:
        return (place, shape, summary.note, *[""] * 8)
    numbers = (stats.mean, stats.std, stats.min, stats.max, stats.abs_mean, stats.l2)
    counts = (stats.nan, stats.posinf + stats.neginf, stats.zero)
    return (place, shape, *(_number(n) for n in numbers), *(f"{c:,}" for c in counts))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
