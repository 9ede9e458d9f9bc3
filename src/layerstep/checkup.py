"""`layerstep doctor train.py`: run a program with the doctor on it, and report at the end."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import torch

from layerstep._torch.tensors import size_of
from layerstep.doctor.budget import Level
from layerstep.doctor.course import course_view
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Severity
from layerstep.doctor.health import health_of
from layerstep.doctor.log import Log
from layerstep.doctor.rule import rule_named
from layerstep.doctor.status import StatusLine
from layerstep.doctor.training_calls import TrainingCall
from layerstep.doctor.trial import Trial, trying
from layerstep.doctor.views import report_view
from layerstep.doctor.watching import Doctor, doctor_of
from layerstep.engine.session import Session
from layerstep.errors import Quit, UserError
from layerstep.exports.doctor import doctor_page
from layerstep.files import replacing
from layerstep.layers.architecture import Architecture
from layerstep.layers.architecture_view import MOST_BLOCKS as ALL_BLOCKS
from layerstep.layers.architecture_view import architecture_view
from layerstep.program import CAUGHT_EXIT_CODE, Program
from layerstep.sessions.diagnostics import architecture_of
from layerstep.sinks.opening import close_sinks
from layerstep.training_steps.steps import Stepped, Steps
from layerstep.views import Group, Notice, Text, View

__all__ = ["Checkup", "diagnose"]

MOST_BYTES = 1 << 30
"""Of the parameters: a larger model is not copied unasked."""
MOST_BLOCKS = 8
"""Blocks of the model that the report on the screen shows; the page shows more."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was asked for."""

    level: Level = Level.BASIC
    steps: int | None = None
    """End the program after so many training steps."""
    json: IO[str] | None = None
    html: Path | None = None
    off: tuple[str, ...] = ()
    """Rules that are silenced, by code or name."""


class _EnoughSteps(Quit):
    """`--steps N` are done. A `SystemExit`, so that a trainer that catches every `Exception` lets it pass."""


class _Structure:
    """What the model is made of, noted at its first step: when the program is over, the model may be gone."""

    def __init__(self, doctor: Doctor) -> None:
        self._doctor = doctor
        self.found: Architecture | None = None

    def step(self, step: StepFacts) -> None:
        """A step is done."""
        call = self._doctor.training_calls.last
        if self.found is not None or call is None or call.reference() is None:
            return
        model = self._doctor.session.run.models.by_root(call.module)
        name = model.name if model is not None else ""
        try:
            self.found = self._tried(call, name)
        except UserError:  # it cannot be copied
            self.found = architecture_of(call.module, name=name)

    def _tried(self, call: TrainingCall, name: str) -> Architecture:
        """With the FLOPs, the shapes and what is not called, from a forward of a copy without hooks."""
        if sum(map(size_of, call.module.parameters())) > MOST_BYTES:
            raise UserError("too large to be copied")
        args, kwargs = call.arguments()
        with trying(self._doctor.session, call.module), torch.no_grad():
            return architecture_of(Trial(call).twin(), args, kwargs, name=name)

    def view(self, most: int) -> View | None:
        note = "the FLOP are those of one forward" if self.found is not None and self.found.flops else ""
        return architecture_view(self.found, most=most, note=note) if self.found is not None else None


def diagnose(program: Program, session: Session, checkup: Checkup) -> int:
    """Show each finding when it arises, and a report at the end.

    The exit code is the program's own; 3 if the program went well and there is an error among the findings.
    """
    silenced = map(rule_named, checkup.off)
    doctor = doctor_of(session)
    doctor.silenced.update(silenced)
    session.attach(discover=True)
    doctor.start(checkup.level)
    status, log = StatusLine(doctor), Log(checkup.json) if checkup.json is not None else None
    structure = _Structure(doctor)
    doctor.steppers += [status.step, structure.step]
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
        _close(doctor, checkup, log, structure, program=program)
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


def _close(
    doctor: Doctor, checkup: Checkup, log: Log | None, structure: _Structure, *, program: Program
) -> None:
    """Ask the rules for the last time, and show, log and write what there is."""
    doctor.finish(quiet=True)
    doctor.session.say(Group((Text(""), _report(doctor, structure.view(MOST_BLOCKS)))), "answer")
    if log is not None:
        steps = doctor.diagnosis.run.training_step
        log.ends(doctor.findings, health_of(doctor.findings, steps).score, doctor.budget.cost)
    if checkup.html is not None:
        title, model = os.path.basename(program.script), structure.view(ALL_BLOCKS)
        with replacing(checkup.html) as new:
            new.write_text(doctor_page(doctor, title=title, model=model), encoding="utf-8")
        doctor.session.say(Notice(f"the report is in {checkup.html}", level="good"))
    worst = next(iter(doctor.findings), None)
    if worst is not None and worst.severity.rank >= Severity.WARNING.rank:
        line = shlex.join(["layerstep", "run", "-e", "doctor on", *program.words])
        told = f"`--off {worst.code}` silences a rule here; `explain` and `probe` are lines for the prompt"
        doctor.session.say(Notice(told, f"`{line}`"))


def _report(doctor: Doctor, model: View | None) -> View:
    run, findings = doctor.diagnosis.run, doctor.findings
    if not run.optimizers:
        return Notice("no optimizer has stepped, so there is no training to judge", level="warn")
    before = [*([model] if model is not None else []), course_view(run, doctor.budget.step_seconds)]
    return report_view(run, findings, health_of(findings, run.training_step), doctor.cost(), before)
