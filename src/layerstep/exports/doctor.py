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
from layerstep.registry import export
from layerstep.render.html import to_html
from layerstep.render.svg import to_svg
from layerstep.views import View

__all__ = ["doctor_page", "write_doctor_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="layerstep">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_STYLE = """
:root { --ink: #24292f; --back: #ffffff; --card: #f6f8fa; --line: #d0d7de }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6edf3; --back: #0d1117; --card: #161b22; --line: #30363d }
}
body { color: var(--ink); background: var(--back); font: 15px/1.5 system-ui, sans-serif;
max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.1rem; margin: 0 }
code { font-family: ui-monospace, monospace }
.facts { display: flex; flex-wrap: wrap; gap: .8rem 1.5rem } .facts b { font-size: 1.3rem; display: block }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1rem }
.curves svg { width: 100%; height: auto; overflow: visible }
@media (max-width: 40rem) { .curves svg text { font-size: 19px } }
.model { overflow-x: auto }
article { background: var(--card); border: 1px solid var(--line); border-left-width: .4rem;
border-radius: .4rem; padding: .7rem 1rem; margin: 1rem 0 }
article.critical, article.error { border-left-color: #d1242f }
article.warning { border-left-color: #bf8700 } article.info { border-left-color: #57606a }
article article { margin: .6rem 0 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0 0 }
dt { opacity: .7; max-width: 10rem } dd { margin: 0; overflow-wrap: anywhere }
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
    parts = [_facts(doctor, health_of(findings, run.training_step))]
    parts += [_card(each, findings) for each in findings if not each.caused_by]
    if not findings and run.optimizers:
        parts.append("<p>Nothing is wrong with this training.</p>")
    if not run.optimizers:
        parts.append("<p>No optimizer has stepped, so there is no training to judge.</p>")
    parts.append(f'<div class="curves">{"".join(to_svg(plot) for plot in curves(run))}</div>')
    told = [course_view(run, doctor.budget.step_seconds)] if run.optimizers else []
    parts += [f'<div class="model">{to_html(each)}</div>' for each in (*told, model) if each is not None]
    return _PAGE.format(title=html.escape(title), style=_STYLE, body="\n".join(parts))


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
