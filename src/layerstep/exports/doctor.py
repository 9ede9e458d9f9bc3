"""What the doctor has seen, as a page: the curves, the findings ranked by cause, the health."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layerstep.doctor.finding import Finding
from layerstep.doctor.health import Health, health_of
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.views import curves, shown
from layerstep.doctor.watching import Doctor, doctor_of
from layerstep.errors import UserError
from layerstep.exports.page import page
from layerstep.registry import export
from layerstep.render.svg import to_svg

__all__ = ["cards", "doctor_page", "write_doctor_page"]


@export(".doctor.html", of_session=True)
def write_doctor_page(session: Any, path: Path) -> None:
    doctor = doctor_of(session)
    if not doctor.was_on:
        raise UserError("the doctor has seen nothing", "`doctor on` watches the training")
    path.write_text(doctor_page(doctor, title=path.name.partition(".")[0]), encoding="utf-8")


def doctor_page(doctor: Doctor, *, title: str) -> str:
    """The page, in one file, with nothing to load."""
    run, findings = doctor.diagnosis.run, doctor.findings
    health = health_of(findings, run.training_step)
    parts = [_facts(run, findings, health, doctor.budget.cost)]
    parts += [to_svg(plot) for plot in curves(run)]
    parts += cards(findings)
    if not findings:
        parts.append("<p>Nothing is wrong with this training.</p>")
    return page("\n".join(parts), title=title)


def cards(findings: Sequence[Finding]) -> list[str]:
    """A card for each cause, with what follows from it in it."""
    return [_card(each, findings) for each in findings if not each.caused_by]


def _facts(run: RunFacts, findings: Sequence[Finding], health: Health, cost: float) -> str:
    told = [
        ("training steps", f"{run.training_step:,}"),
        ("health", health.word),
        ("findings", str(len(findings))),
    ]
    told.append(("taken by the doctor", f"{cost:.1%}"))
    return f'<p class="facts">{"".join(f"<span><b>{value}</b>{name}</span>" for name, value in told)}</p>'


def _card(finding: Finding, findings: Sequence[Finding]) -> str:
    rows = [("where", str(finding.where)), ("since", finding.steps)]
    rows += [(key, shown(value)) for key, value in finding.evidence.items()]
    rows += [("mend", "; ".join(finding.advice)), ("confirm", finding.confirm), ("silence", finding.silence)]
    title = f"{finding.severity} · {finding.code} {finding.rule}"
    below = "".join(_card(each, findings) for each in findings if each.caused_by == finding.rule)
    return (
        f'<article class="{finding.severity}"><h2>{html.escape(title)}</h2>{html.escape(finding.text)}'
        f"{_list(rows)}{below}</article>"
    )


def _list(rows: Iterable[tuple[str, str]]) -> str:
    items = (f"<dt>{html.escape(name)}</dt><dd>{_shown(name, text)}</dd>" for name, text in rows if text)
    return f"<dl>{''.join(items)}</dl>"


def _shown(name: str, text: str) -> str:
    text = html.escape(text)
    return f"<code>{text}</code>" if name in ("confirm", "silence") else text
