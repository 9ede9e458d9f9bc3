from __future__ import annotations

from layerstep.arguments import Given
from layerstep.doctor.views import findings_view
from layerstep.doctor.watching import doctor_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice, View


@command("findings", group="train", args=(), examples=("findings",), only_looks=True)
def findings(session: Session, given: Given) -> View:
    """List what the doctor has found, causes first.

    Findings that follow from another one are below it. `explain RULE` says why one matters and how to fix it.
    """
    watcher = doctor_of(session)
    if not watcher.was_on:
        return Notice("the doctor is off", "`doctor on` watches the training")
    return findings_view(watcher.findings)
