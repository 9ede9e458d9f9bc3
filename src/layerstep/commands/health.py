from __future__ import annotations

from layerstep.arguments import Given
from layerstep.doctor.health import health_of
from layerstep.doctor.views import health_view
from layerstep.doctor.watching import doctor_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice, View


@command("health", group="train", args=(), examples=("health",), only_looks=True)
def health(session: Session, given: Given) -> View:
    """Show the health of the training.

    It is 100 points minus 60 for a critical finding, 30 for an error and 10 for a warning. Findings that
    follow from another one cost nothing. There is no health before the 20th training step.
    """
    watcher = doctor_of(session)
    if not watcher.was_on:
        return Notice("the doctor is off", "`doctor on` watches the training")
    steps = watcher.diagnosis.run.training_step
    return health_view(health_of(watcher.findings, steps), steps)
