from __future__ import annotations

from layerstep.arguments import Choice, Flag, Given, Number, Option, Path
from layerstep.engine.session import Session
from layerstep.graph.lanes import lanes_view
from layerstep.graph.picture import picture_of
from layerstep.graph.tracing import LastPicture, graph_at_stop
from layerstep.registry import command
from layerstep.views import Table

NOTES = 6
"""Lines for the headings and the notes."""


@command(
    "graph",
    group="look",
    args=(
        Path(optional=True),
        Option("depth", Number("N", least=1, default=1)),
        Flag("ops"),
        Option("by", Choice("grad|time|bytes|dead")),
    ),
    examples=("graph", "graph blocks.0", "graph --depth 2", "graph --ops --by time"),
    needs_pause=True,
)
def graph(session: Session, given: Given) -> Table:
    """Draw the modules as they ran, and what flows between them.

    The outermost call of this stop runs once more on copies, without dropout and hooks; the run is not
    changed. The rows are the module calls in their order. `--depth 2` also shows the calls in them, and so
    on. Equal neighbours share a row. A lane leads a value past some rows to the row that reads it. An edge
    goes through functions between modules, views and writes in place; `--ops` also gives the functions rows.
    With PATH, only that module is shown, in its first call.

    `--by` adds a figure: `grad`, the norm of the gradients of the parameters; `time`, of this one rerun;
    `bytes` of the output; `dead`, the share of units that are 0 throughout. `export` writes the graph, in
    the colours of that figure, to a .dot, .graph.svg or .mmd file, and all data to a .graph.json file.
    """
    path = session.run.models.find(given.path)[0] if given.path else ""
    found = graph_at_stop(session, by=given.by or "")
    picture = picture_of(found, path, depth=given.depth, ops=given.ops)
    last = session.instruments.get(LastPicture)
    last.graph, last.picture = found, picture
    return lanes_view(picture, most=max(session.run.config.max_lines - NOTES, 1), notes=found.notes)
