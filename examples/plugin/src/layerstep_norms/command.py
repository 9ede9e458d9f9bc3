"""The command `norms`."""

from __future__ import annotations

from layerstep.arguments import Flag, Given, Number, Option, Path
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import command
from layerstep.tensors.observing import observing
from layerstep.views import Column, Table


@command(
    "norms",
    group="look",
    args=(Path(optional=True), Option("most", Number("N", least=1, default=50)), Flag("largest")),
    examples=("norms", "norms blocks.0", "norms --largest --most 5"),
)
def norms(session: Session, given: Given) -> Table:
    """List the norm of every parameter.

    With PATH: of those of one module. `--largest` puts the largest first; `--most` limits the rows.
    """
    if given.path:
        module = session.run.models.find(given.path)[1]
    elif session.run.models.main is not None:
        module = session.run.models.main.root
    else:
        raise UserError("no model has run yet", "`continue` starts the run")
    with observing():
        found = [(name, float(parameter.norm())) for name, parameter in module.named_parameters()]
    if given.largest:
        found.sort(key=lambda row: -row[1])
    rows = tuple((name, f"{norm:.4g}") for name, norm in found[: given.most])
    return Table((Column("parameter", "path"), Column("norm", right=True)), rows)
