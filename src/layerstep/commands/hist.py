from __future__ import annotations

from layerstep.arguments import Expr, Flag, Given, Number, Option
from layerstep.engine.session import Session
from layerstep.engine.values import one_tensor
from layerstep.registry import command
from layerstep.tensors.format import number
from layerstep.tensors.observing import observing
from layerstep.tensors.present import tensor_view
from layerstep.tensors.spread import Spread, spread
from layerstep.views import Column, Group, Plot, Table, View

BINS = 36  # of two characters each on a screen of 80


@command(
    "hist",
    group="look",
    args=(
        Expr("X", optional=True),
        Option("bins", Number("N", least=1, most=1000, default=BINS), "draws that many bars"),
        Flag("exact"),
        Flag("log"),
    ),
    examples=("hist out", "hist blocks.0.attn.qkv.weight --bins 20", "hist out --exact --log"),
)
def hist(session: Session, given: Given) -> View:
    """Draw the histogram of a tensor, with its percentiles.

    It covers the finite elements. For a large tensor it takes a sample, and the note says so; `--exact` reads
    all elements. `--log` draws the counts by powers of ten, so that the tails show. If a few values lie far
    away, the first and the last bar hold them. An outlier is more than six robust deviations away from the
    median. A robust deviation is 1.4826 times the median distance from the median.
    """
    name, tensor = one_tensor(session.prompt, given.x)
    with observing():
        found = spread(tensor, bins=given.bins, exact=given.exact)
    line = tensor_view(tensor, limit=session.run.config.sample_above)
    if found is None:
        return Group((line, Plot("histogram", (), name)))
    plot = Plot(
        "histogram",
        (found.counts,),
        name,
        x=found.edges,
        note=_ends(found),
        log=given.log,
    )
    return Group((line, plot, _percentiles(found)))


def _ends(found: Spread) -> str:
    """What the end bars hold besides their own."""
    beyond = []
    if found.below:
        beyond.append(f"the first bar holds {found.below:,} below {number(found.edges[0])}")
    if found.above:
        beyond.append(f"the last bar holds {found.above:,} above {number(found.edges[-1])}")
    return ", ".join(beyond)


def _percentiles(found: Spread) -> Table:
    inner = [(share, value) for share, value in found.percentiles if 0 < share < 100]
    columns = tuple(Column(f"{share:g}%", right=True) for share, _ in inner)
    notes = [f"median {number(found.median)}, median distance from it {number(found.mad)}"]
    if found.outliers and not found.is_one_sided:
        limits = f"{number(found.outlier_low)} to {number(found.outlier_high)}"
        notes.append(f"{found.outliers:,} outliers, outside {limits}")
    if found.nonfinite:
        notes.append(f"{found.nonfinite:,} not finite, left out")
    if found.sampled is not None:
        notes.append(f"a sample of {found.sampled:,} values; --exact takes all")
    return Table(columns, (tuple(number(value) for _, value in inner),), note="\n".join(notes))
