from __future__ import annotations

from layerstep.arguments import Form, Given, Word
from layerstep.doctor.budget import Level
from layerstep.doctor.course import course_view
from layerstep.doctor.health import health_of
from layerstep.doctor.rule import rule_named
from layerstep.doctor.views import report_view
from layerstep.doctor.watching import Doctor, doctor_of
from layerstep.engine.session import Session
from layerstep.registry import all_rules, command
from layerstep.views import Notice, View


def _rules(session: Session) -> list[str]:
    return [entry.code for entry in all_rules()]


def _levels_and_rules(session: Session) -> list[str]:
    return [*Level, *_rules(session)]


@command(
    "doctor",
    group="train",
    args=(
        Form(""),
        Form("on", Word("LEVEL|RULE", name="word", optional=True, completes=_levels_and_rules)),
        Form("off", Word("RULE", optional=True, completes=_rules)),
        Form("report"),
    ),
    examples=("doctor on", "doctor", "doctor report", "doctor off R6", "doctor on R6", "doctor off"),
)
def doctor(session: Session, given: Given) -> View:
    """Watch the training, and say what is wrong with it.

    `doctor on` watches from the next step on, and shows each finding once, as soon as it arises. The level
    sets how much time it may take: `basic` at most 2 % of a step, `advanced` 10 %, `extreme` 25 %. The doctor
    measures its own time, and looks at fewer steps to keep to that. It always looks at the first ten. After
    500 steps, where a step is very short, it also rests between the steps that it watches. `info cost` says
    what it takes.
    `doctor report` shows the loss, the gradient norm and all findings, causes first.
    `findings` lists them. `explain RULE` says why one matters and how to fix it.
    `doctor off RULE` silences one rule. `doctor on RULE` turns it on again.
    `doctor off` removes everything from the run and keeps the findings.
    `layerstep doctor train.py` does all this without a prompt.
    """
    watcher = doctor_of(session)
    if given.form == "on":
        return _on(watcher, given.word)
    if given.form == "off":
        return _off(watcher, given.rule)
    if not watcher.was_on:
        return Notice("the doctor is off", "`doctor on` watches the training")
    run, findings = watcher.diagnosis.run, watcher.findings
    health = health_of(findings, run.training_step)
    before = [course_view(run, watcher.budget.step_seconds)] if run.optimizers else []
    return report_view(run, findings, health, watcher.cost(), before)


def _on(watcher: Doctor, word: str) -> Notice:
    if word and word not in list(Level):
        name = rule_named(word, "level or rule")
        watcher.silenced.discard(name)
        return Notice(f"the rule {name} is on", level="good")
    watcher.start(Level(word) if word else None)
    level = watcher.level
    hint = f"it takes at most {level.share:.0%} of a step; `findings`, `doctor report`"
    return Notice(f"the doctor watches from the next step on, level {level}", hint, level="good")


def _off(watcher: Doctor, word: str) -> Notice:
    if word:
        name = rule_named(word)
        watcher.silenced.add(name)
        return Notice(f"the rule {name} is off", f"`doctor on {word}` turns it on again", level="good")
    if not watcher.is_on:
        return Notice("the doctor is off")
    watcher.stop()
    return Notice("the doctor is off; what was found is kept", "`findings`", level="good")
