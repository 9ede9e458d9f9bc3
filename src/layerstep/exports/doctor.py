"""What the doctor has seen, as a page: the curves, the findings ranked by cause, the health."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layerstep.doctor.course import course_view
from layerstep.doctor.finding import Finding
from layerstep.doctor.health import Health, health_of
from layerstep.doctor.views import curves, shown, since
from layerstep.doctor.watching import Doctor, doctor_of
from layerstep.errors import UserError
from layerstep.exports.page import page
from layerstep.registry import export
from layerstep.render.html import to_html
from layerstep.render.svg import to_svg
from layerstep.views import View

__all__ = ["cards", "doctor_page", "write_doctor_page"]

_STYLE = """
body { max-width: 78rem }
h1 { overflow-wrap: anywhere }
.facts { gap: .8rem 1.5rem }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1rem }
.curves svg { width: 100%; height: auto; overflow: visible }
@media (max-width: 40rem) { .curves svg text { font-size: 19px } }
.model { overflow-x: auto }
dt { max-width: 10rem }
@media (max-width: 40rem) { dl { display: block } dd { margin: 0 0 .4rem } }
"""


@export(".doctor.html", of_session=True)
def write_doctor_page(session: Any, path: Path) -> None:
    doctor = doctor_of(session)
    if not doctor.was_on:
        raise UserError("the doctor has seen nothing", "`doctor on` watches the training")
    path.write_text(doctor_page(doctor, title=path.name.partition(".")[0]), encoding="utf-8")


def doctor_page(doctor: Doctor, *, title: str, model: View | None = None) -> str:
    """The page, in one file, with nothing to load. `model`: what the model is made of."""
    run, findings = doctor.diagnosis.run, doctor.findings
    parts = [_facts(doctor, health_of(findings, run.training_step)), *cards(findings)]
    if not findings and run.optimizers:
        parts.append("<p>Nothing is wrong with this training.</p>")
    if not run.optimizers:
        parts.append("<p>No optimizer has stepped, so there is no training to judge.</p>")
    parts.append(f'<div class="curves">{"".join(to_svg(plot) for plot in curves(run))}</div>')
    told = [course_view(run, doctor.budget.step_seconds)] if run.optimizers else []
    parts += [f'<div class="model">{to_html(each)}</div>' for each in (*told, model) if each is not None]
    return page("\n".join(parts), title=title, style=_STYLE)


def cards(findings: Sequence[Finding]) -> list[str]:
    """A card for each cause, with what follows from it in it."""
    return [_card(each, findings) for each in findings if not each.caused_by]


def _facts(doctor: Doctor, health: Health) -> str:
    count = len(doctor.findings)
    told = [
        ("training steps", f"{doctor.diagnosis.run.training_step:,}"),
        ("health", health.word),
        ("finding" if count == 1 else "findings", str(count)),
        (f"taken by the doctor, {doctor.level}", f"{doctor.budget.cost:.1%}"),
    ]
    return f'<p class="facts">{"".join(f"<span><b>{value}</b>{name}</span>" for name, value in told)}</p>'


def _card(finding: Finding, findings: Sequence[Finding]) -> str:
    rows = [("where", str(finding.where).replace("  ", " · ")), ("since", since(finding))]
    rows += [(key, shown(value)) for key, value in finding.evidence.items()]
    rows += [("fix", "; ".join(finding.advice)), ("confirm", finding.confirm), ("silence", finding.silence)]
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
