from __future__ import annotations

from layerstep.arguments import Given
from layerstep.automation.running import hooks_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

MOST = 50


@command("alerts", group="train", args=(), examples=("alerts",))
def alerts(session: Session, given: Given) -> View:
    """List the alerts of the hooks, the last first.

    An alert that repeats step after step is one row. It is sent again if it comes back after a break.
    """
    kept = hooks_of(session).alerts
    notes = [f"a sink failed and is off: {each}" for each in kept.broken[-3:]]
    if not kept.kept:
        return Notice("there are no alerts", "; ".join(notes) or "`hooks` lists what can raise one")
    columns = (
        Column("severity", "warn"),
        Column("from", "key"),
        Column("steps"),
        Column("layer", "path"),
        Column("what"),
    )
    rows = tuple(
        (
            each.severity.value,
            each.source,
            str(each.step) if each.count == 1 else f"{each.step}-{each.last_step}",
            each.layer,
            each.message,
        )
        for each in reversed(kept.kept[-MOST:])
    )
    more = len(kept.kept) - len(rows)
    return Table(columns, rows, note="\n".join([*notes, *([f"{more:,} earlier ones"] if more else [])]))
