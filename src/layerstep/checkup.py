"""`layerstep doctor train.py`: run a program with the doctor on it, and report at the end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from layerstep.doctor.budget import Level
from layerstep.doctor.finding import Severity
from layerstep.doctor.health import health_of
from layerstep.doctor.log import Log
from layerstep.doctor.status import StatusLine
from layerstep.doctor.views import report_view
from layerstep.doctor.watching import Doctor, doctor_of
from layerstep.engine.session import Session
from layerstep.errors import Quit
from layerstep.exports.doctor import doctor_page
from layerstep.files import replacing
from layerstep.program import CAUGHT_EXIT_CODE, Program
from layerstep.sinks.opening import close_sinks
from layerstep.training_steps.steps import Stepped, Steps
from layerstep.views import Group, Notice, Text, View

__all__ = ["Checkup", "diagnose"]


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was asked for."""

    level: Level = Level.BASIC
    steps: int | None = None
    """End the program after so many training steps."""
    json: IO[str] | None = None
    html: Path | None = None


class _EnoughSteps(Quit):
    """`--steps N` are done. A `SystemExit`, so that a trainer that catches every `Exception` lets it pass."""


def diagnose(program: Program, session: Session, checkup: Checkup) -> int:
    """Show each finding when it arises, and a report at the end.

    The exit code is the program's own; 3 if the program went well and there is an error among the findings.
    """
    session.attach(discover=True)
    doctor = doctor_of(session)
    doctor.start(checkup.level)
    status, log = StatusLine(doctor), Log(checkup.json) if checkup.json is not None else None
    doctor.steppers.append(status.step)
    if log is not None:
        log.begins(program.script, checkup.level)
        doctor.steppers.append(log.step)
        doctor.listeners.append(log.finding)
    if checkup.steps is not None:
        training = session.run.training
        training.listen(training.after, partial(_end_after, checkup.steps, training), True)
    try:
        code = _run(program)
        status.erase()
        _close(doctor, checkup, log, script=program.script)
        is_bad = any(each.severity.rank >= Severity.ERROR.rank for each in doctor.findings)
        return code or (CAUGHT_EXIT_CODE if is_bad else 0)
    finally:
        session.detach()
        close_sinks(session)
        session.close()


def _end_after(steps: int, training: Steps, stepped: Stepped) -> None:
    """After the doctor, which listened first. It may rest and see nothing of this step."""
    if training.count >= steps:
        raise _EnoughSteps


def _run(program: Program) -> int:
    try:
        return program.run()
    except _EnoughSteps:
        return 0


def _close(doctor: Doctor, checkup: Checkup, log: Log | None, *, script: str) -> None:
    """Ask the rules for the last time, and show, log and write what there is."""
    doctor.finish(quiet=True)
    doctor.session.say(Group((Text(""), _report(doctor))), "answer")
    if log is not None:
        steps = doctor.diagnosis.run.training_step
        log.ends(doctor.findings, health_of(doctor.findings, steps).score, doctor.budget.cost)
    if checkup.html is not None:
        with replacing(checkup.html) as new:
            new.write_text(doctor_page(doctor, title=os.path.basename(script)), encoding="utf-8")
        doctor.session.say(Notice(f"the report is in {checkup.html}", level="good"))
    if any(each.severity.rank >= Severity.WARNING.rank for each in doctor.findings):
        hint = f"`layerstep run -e 'doctor on' {os.path.basename(script)}`"
        doctor.session.say(Notice("`explain`, `probe` and `doctor off` are lines for the prompt", hint))


def _report(doctor: Doctor) -> View:
    run, findings = doctor.diagnosis.run, doctor.findings
    if not run.optimizers:
        return Notice("no optimizer has stepped, so there is no training to judge", level="warn")
    return report_view(run, findings, health_of(findings, run.training_step), doctor.cost())
