"""Findings, the report and the health as views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layerstep.doctor.finding import Confidence, Finding, Number, Severity
from layerstep.doctor.health import ENOUGH, Health
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.doctor.series import Series
from layerstep.tensors.format import number
from layerstep.views import Column, Fields, Group, Notice, Plot, Role, Span, Table, Text, View

__all__ = ["curve", "curves", "finding_view", "findings_view", "health_view", "report_view", "shown", "since"]

_ROLE: dict[Severity, Role] = {
    Severity.INFO: "dim",
    Severity.WARNING: "warn",
    Severity.ERROR: "bad",
    Severity.CRITICAL: "bad",
}
MOST_POINTS = 400
MOST_NUMBERS = 8


def _title(finding: Finding) -> tuple[Span, ...]:
    return (
        Span(finding.severity.value, _ROLE[finding.severity]),
        Span(f"{finding.code} {finding.rule}", "key"),
        Span(finding.text),
    )


def finding_view(finding: Finding, *, effects: Sequence[Finding] = (), whole: bool = False) -> Fields:
    """A finding when it arises; `whole` adds the evidence and how sure it is, for a report."""
    items: list[tuple[str, View]] = []
    if str(finding.where):
        items.append(("where", Text(str(finding.where))))
    items.append(("since", Text(since(finding))))
    if whole:
        told = "  ".join(f"{key} {shown(value)}" for key, value in finding.evidence.items())
        if told:
            items.append(("evidence", Text(told)))
    if effects:
        items.append(("explains", Text(", ".join(f"{each.code} {each.rule}" for each in effects))))
    if finding.advice:
        items.append(("fix", Text("; ".join(finding.advice[:3]))))
    if finding.confirm:
        items.append(("confirm", Text(f"`{finding.confirm}`")))
    if whole:
        items.append(("silence", Text(f"`{finding.silence}`")))
    return Fields(_title(finding), tuple(items))


def since(finding: Finding) -> str:
    """The steps in which it was seen, how often, and how sure it is."""
    is_judged = finding.confidence is Confidence.STATISTICAL
    sure = "a judgement on the numbers so far" if is_judged else "a fact"
    gone = "" if finding.is_active else ", not seen of late"
    times = "once" if finding.count == 1 else f"{finding.count} times"
    return f"{finding.steps}, seen {times}{gone}; {sure}"


def shown(value: Number) -> str:
    if isinstance(value, tuple):
        more = " …" if len(value) > MOST_NUMBERS else ""
        return " ".join(number(each) for each in value[:MOST_NUMBERS]) + more
    return value if isinstance(value, str) else number(float(value))


def findings_view(findings: Sequence[Finding]) -> View:
    """A table of findings, causes first, what they explain below them."""
    if not findings:
        return Notice("nothing was found", "`doctor report` has the curves", level="good")
    rows = tuple(
        (
            each.severity.value,
            f"└ {each.code}" if each.caused_by else each.code,
            each.rule,
            _steps(each),
            str(each.where),
            each.text,
        )
        for each in findings
    )
    columns = (
        Column("severity", "warn"),
        Column("rule", "key"),
        Column("name"),
        Column("steps"),
        Column("where"),
        Column("what"),
    )
    return Table(columns, rows, note="`explain RULE` says why it matters and how to fix it")


def _steps(finding: Finding) -> str:
    one = finding.first_step == finding.last_step
    return str(finding.first_step) if one else f"{finding.first_step}-{finding.last_step}"


def health_view(health: Health, steps: int) -> View:
    """The score, and what each finding costs."""
    if health.score is None:
        return Notice(f"health n/a: {steps} of {ENOUGH} training steps", "let it run some more")
    if not health.costs:
        return Notice(f"health {health.score} of 100 after {steps:,} training steps", level="good")
    rows = tuple((f"-{cost}", each.code, each.rule, each.text) for each, cost in health.costs)
    columns = (Column("points", right=True), Column("rule", "key"), Column("name"), Column("what"))
    return Table(columns, rows, title=f"health {health.score} of 100 after {steps:,} training steps")


def report_view(
    run: RunFacts,
    findings: Sequence[Finding],
    health: Health,
    cost: Sequence[str],
    before: Sequence[View] = (),
) -> View:
    """The closing report: what comes before, the curves, then the findings ranked by cause."""
    parts: list[View] = [*before, *curves(run)]
    causes = [each for each in findings if not each.caused_by]
    for cause in causes:
        effects = [each for each in findings if each.caused_by == cause.rule]
        parts.append(finding_view(cause, effects=effects, whole=True))
    if not causes:
        parts.append(Notice("nothing is wrong with this training", level="good"))
    parts.append(health_view(health, run.training_step))
    parts += [Text(each) for each in cost]
    return Group(tuple(parts))


def curves(run: RunFacts) -> list[Plot]:
    """The loss and the gradient norm of each optimizer."""
    several = len(run.optimizers) > 1
    return [plot for each in run.optimizers.values() for plot in _curves(each, several=several)]


def _curves(optimizer: OptimizerRun, *, several: bool) -> list[Plot]:
    name = f" of {optimizer.kind} {optimizer.number}" if several else ""
    found: list[Plot] = []
    if len(optimizer.loss) > 1:
        found.append(_curve(optimizer.loss, f"loss{name}"))
    if len(optimizer.grad_norm) > 1:
        found.append(_curve(optimizer.grad_norm, f"gradient norm{name}"))
    return found


def _curve(series: Series, title: str) -> Plot:
    points = list(series)
    return curve(points[:: max(1, -(-len(points) // MOST_POINTS))], title)


def curve(points: Sequence[tuple[int, float]], title: str) -> Plot:
    """Numbers by step, on a scale of powers if they span more than two."""
    values = tuple(value if math.isfinite(value) else math.nan for _, value in points)
    finite = [value for value in values if not math.isnan(value)]
    is_wide = min(finite, default=0.0) > 0 and max(finite) > 100 * min(finite)
    steps = tuple(float(step) for step, _ in points)
    return Plot("line", (values,), title=title, x=steps, x_label="step", log=is_wide)
