from __future__ import annotations

from layerstep.arguments import Choice, Given
from layerstep.doctor.budget import Level
from layerstep.doctor.watching import doctor_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Notice, View


@command(
    "level",
    group="train",
    args=Choice("LEVEL", of=tuple(Level), optional=True),
    examples=("level", "level advanced"),
)
def level(session: Session, given: Given) -> View:
    """Show or change how closely the doctor looks.

    `basic` may take 2 % of a step, `advanced` 10 %, `extreme` 25 %. What was seen is kept.
    """
    doctor = doctor_of(session)
    if given.level:
        doctor.level = doctor.budget.level = Level(given.level)
    state = "" if doctor.is_on else "; the doctor is off"
    text = f"level {doctor.level}: at most {doctor.level.share:.0%} of a step{state}"
    return Notice(text, "" if doctor.is_on else "`doctor on` watches the training")
