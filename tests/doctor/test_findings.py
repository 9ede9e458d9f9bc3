"""Signs become findings: said once, cleared, ranked by cause; health is 100 minus what they cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest

from layerstep.doctor.diagnosis import CLEAN, Diagnosis, ranked
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Confidence, Finding, Place, Severity, Sign
from layerstep.doctor.health import health_of
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.views import curve


class Told(Rule):
    """Gives the signs that a test tells it to."""

    name, code = "told", "X1"
    patience = 2

    def __init__(self) -> None:
        self.signs: list[Sign] = []

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        return self.signs


class Raises(Rule):
    name, code = "raises", "X2"

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        raise ZeroDivisionError("a mistake in a rule")


def step(number: int) -> StepFacts:
    return StepFacts(number, number, 1, "SGD", (), (), (), 0.01, is_looked_at=True)


def finding(rule: str, severity: Severity = Severity.WARNING, **options: object) -> Finding:
    made = {"first_step": 5, "last_step": 9, "explains": (), "confidence": Confidence.EXACT, **options}
    return Finding(rule, rule.upper(), severity, text=rule, where=Place(), **made)  # type: ignore[arg-type]


def test_a_sign_is_a_finding_after_its_patience_and_is_said_once() -> None:
    rule, said = Told(), list[Finding]()
    diagnosis = Diagnosis([rule], set(), said.append, lambda rule, error: None)
    rule.signs = [Sign("wrong", Place(module="head"))]
    diagnosis.stepped(step(1))
    assert not said
    for number in range(2, 8):
        diagnosis.stepped(step(number))
    assert [(each.first_step, each.last_step) for each in said] == [(1, 2)]
    assert [(each.last_step, each.count, each.is_active) for each in diagnosis.findings] == [(7, 7, True)]
    rule.signs = []
    for number in range(8, 8 + CLEAN):
        diagnosis.stepped(step(number))
    assert not diagnosis.findings[0].is_active and len(said) == 1


def test_findings_of_one_rule_at_two_places_are_two() -> None:
    rule, said = Told(), list[Finding]()
    diagnosis = Diagnosis([rule], set(), said.append, lambda rule, error: None)
    rule.signs = [Sign("wrong", Place(module="head")), Sign("wrong", Place(module="body"))]
    for number in (1, 2, 3):
        diagnosis.stepped(step(number))
    assert [each.where.module for each in said] == ["head", "body"]


def test_a_rule_that_is_off_says_nothing_and_speaks_again_when_it_is_on() -> None:
    rule, silenced = Told(), {"told"}
    diagnosis = Diagnosis([rule], silenced, lambda found: None, lambda rule, error: None)
    rule.signs = [Sign("wrong")]
    for number in (1, 2, 3):
        diagnosis.stepped(step(number))
    assert not diagnosis.findings
    silenced.clear()
    for number in (4, 5):
        diagnosis.stepped(step(number))
    assert diagnosis.findings


def test_a_rule_that_raises_is_told_once_and_asked_no_more() -> None:
    failed: list[str] = []
    rule = Told()
    diagnosis = Diagnosis(
        [Raises(), rule], set(), lambda found: None, lambda rule, error: failed.append(rule.name)
    )
    rule.signs = [Sign("wrong")]
    for number in (1, 2, 3):
        diagnosis.stepped(step(number))
    assert failed == ["raises"] and [each.rule for each in diagnosis.findings] == ["told"]


def test_what_a_finding_explains_stands_below_it() -> None:
    effect = finding("diverging", Severity.ERROR, first_step=40)
    cause = finding("rate", Severity.WARNING, explains=("diverging",))
    other = finding("other", Severity.CRITICAL, first_step=90)
    order = [(each.rule, each.caused_by) for each in ranked([effect, cause, other])]
    assert order == [("other", ""), ("rate", ""), ("diverging", "rate")]


def test_a_note_that_explains_an_error_is_its_cause_and_as_severe() -> None:
    note = finding("sum", Severity.INFO, explains=("diverging", "plateau"))
    order = ranked([finding("diverging", Severity.ERROR), note, finding("plateau", Severity.INFO)])
    assert [(each.rule, each.severity, each.caused_by) for each in order] == [
        ("sum", Severity.ERROR, ""),
        ("diverging", Severity.ERROR, "sum"),
        ("plateau", Severity.INFO, "sum"),
    ]


def test_a_fact_comes_before_a_judgement_and_the_earlier_before_the_later() -> None:
    late = finding("late", first_step=50)
    judged = finding("judged", first_step=1, confidence=Confidence.STATISTICAL)
    early = finding("early", first_step=2)
    assert [each.rule for each in ranked([late, judged, early])] == ["early", "late", "judged"]


def test_a_finding_survives_json() -> None:
    whole = finding(
        "rate",
        explains=("diverging",),
        evidence={"lr": 0.1, "norms": (1.0, 2.0), "kind": "SGD"},
        advice=("lower it",),
        ranks=(0, 3),
        is_active=False,
    )
    assert Finding.from_json(json.loads(json.dumps(whole.to_json()))) == whole


@pytest.mark.parametrize(
    "found, steps, score",
    [
        ([], 5, None),
        ([], 20, 100),
        ([finding("a", Severity.ERROR)], 19, None),
        ([finding("a", Severity.ERROR)], 20, 70),
        ([finding("a", Severity.INFO)], 30, 100),
        ([finding("a", Severity.CRITICAL), finding("b", Severity.ERROR), finding("c")], 30, 0),
        ([finding("a", Severity.ERROR, caused_by="b"), finding("b")], 30, 90),
        ([finding("a", Severity.ERROR, is_active=False)], 30, 100),
    ],
)
def test_health_is_what_causes_leave_of_a_hundred(
    found: list[Finding], steps: int, score: int | None
) -> None:
    assert health_of(found, steps).score == score


@pytest.mark.parametrize(
    "values, is_log",
    [((1.0, 2.0), False), ((1.0, 1e3), True), ((1.0, 1e3, math.inf, math.nan), True), ((-1.0, 1e3), False)],
)
def test_a_curve_over_several_powers_has_a_scale_of_powers_also_where_it_ends_in_nan(
    values: tuple[float, ...], is_log: bool
) -> None:
    plot = curve(list(enumerate(values)), "loss")
    assert plot.log is is_log
    assert [math.isnan(value) for value in plot.values[0]] == [not math.isfinite(value) for value in values]
