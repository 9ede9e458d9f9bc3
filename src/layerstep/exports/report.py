"""The session as one page: every stop, every line and its answer, with plots, findings, times, the graph."""

from __future__ import annotations

import base64
import html
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from layerstep.commands import profile_views
from layerstep.doctor.health import health_of
from layerstep.doctor.watching import Doctor
from layerstep.engine.messages import Message
from layerstep.exports.conversation import Conversation
from layerstep.exports.doctor import cards
from layerstep.exports.page import page
from layerstep.graph import svg as graph_svg
from layerstep.graph.tracing import LastPicture
from layerstep.profile.state import ProfileState
from layerstep.registry import export
from layerstep.render.html import to_html
from layerstep.render.svg import to_svg
from layerstep.views import Group, Plot, Text, View

__all__ = ["report_page", "write_report"]

MOST_BYTES = 1_000_000
"""Of the whole page: it can be mailed."""
_STYLE = """
img { max-width: 100%; background: #ffffff; border-radius: .4rem }
section { border-top: 1px solid var(--line); padding: .3rem 0 }
section.stop { margin-top: 1.5rem; border-top-width: 3px }
.typed { font: 600 14px ui-monospace, monospace; margin: .5rem 0 0 }
.origin, time { opacity: .6; font-weight: 400 }
time { float: right; font: 12px ui-monospace, monospace }
"""
_LEFT_OUT = "<p><i>This answer is left out: the page holds 1 MB.</i></p>"


@export(".report.html", of_session=True)
def write_report(session: Any, path: Path) -> None:
    text = report_page(session, title=_title())
    path.write_text(text, encoding="utf-8")


def report_page(session: Any, *, title: str) -> str:
    """The page; the longest answers are left out where it would be larger than a mail should be."""
    conversation = session.instruments.get(Conversation)
    head = "\n".join(_head(session, conversation))
    messages = list(conversation.messages)
    bodies = [_body(message.view) for _, message in messages]
    room = MOST_BYTES - len(page(head, title=title, style=_STYLE).encode())
    frames = [_section(at, message, "") for at, message in messages]
    room -= sum(len(frame.encode()) + 1 for frame in frames)
    sizes = [len(body.encode()) for body in bodies]
    for place in sorted(range(len(bodies)), key=lambda at: -sizes[at]):
        if sum(sizes) <= room:
            break
        bodies[place], sizes[place] = _LEFT_OUT, len(_LEFT_OUT)
    told = [_section(at, message, body) for (at, message), body in zip(messages, bodies, strict=True)]
    return page("\n".join((head, *told)), title=title, style=_STYLE)


def _title() -> str:
    return f"layerstep: {os.path.basename(sys.argv[0]) or 'session'}"


def _head(session: Any, conversation: Conversation) -> Iterator[str]:
    """Where it ran, then what was found out: findings, times, the graph."""
    stops = [message for _, message in conversation.messages if message.kind == "stop"]
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(conversation.began))
    facts = [
        ("began", began),
        ("stops", str(len(stops))),
        ("training steps", f"{session.run.training.count:,}"),
        ("layerstep", sys.modules["layerstep"].__version__),  # an import would load the front ends
        ("torch", torch.__version__),
        ("python", platform.python_version()),
    ]
    yield f'<p class="facts">{"".join(f"<span><b>{html.escape(v)}</b>{n}</span>" for n, v in facts)}</p>'
    if conversation.forgotten:
        yield f"<p>{conversation.forgotten:,} earlier messages are not kept.</p>"
    for instrument in session.instruments:
        if isinstance(instrument, Doctor) and instrument.was_on:
            health = health_of(instrument.findings, instrument.diagnosis.run.training_step)
            yield f"<h2>Findings of the doctor, health {health.word}</h2>"
            yield from cards(instrument.findings) or ["<p>Nothing is wrong with this training.</p>"]
        elif isinstance(instrument, ProfileState) and instrument.profile.steps:
            yield "<h2>Where the time goes</h2>"
            yield to_html(profile_views.report(instrument, by="module", sort="own"))
        elif isinstance(instrument, LastPicture) and instrument.picture is not None:
            yield "<h2>The model</h2>"
            # As an image: the style of a plot in the page would reach into it.
            data = base64.b64encode(graph_svg.to_svg(instrument.picture).encode()).decode()
            yield f'<img alt="the graph of the model" src="data:image/svg+xml;base64,{data}">'
    yield "<h2>The session</h2>"


def _section(at: float, message: Message, body: str) -> str:
    clock = f"<time>{time.strftime('%H:%M:%S', time.localtime(at))}</time>"
    origin = f'<span class="origin">({html.escape(message.origin)})</span> ' if message.origin else ""
    typed = f'<p class="typed">{origin}{html.escape(message.line)}</p>' if message.line else ""
    kind = "stop" if message.kind == "stop" else "said"
    return f'<section class="{kind}">{clock}{typed}{body}</section>'


def _body(view: View) -> str:
    """Plots as pictures, everything else as the screen shows it."""
    parts: list[str] = []
    rest: list[View] = []
    for each in (*_flat(view), None):
        if each is not None and not isinstance(each, Plot):
            rest.append(each)
            continue
        if rest:
            parts.append(to_html(Group(tuple(rest))))
            rest = []
        if each is not None:
            parts.append(to_svg(each))
    return "".join(parts)


def _flat(view: View) -> list[View]:
    if isinstance(view, Group):
        return [each for part in view.views for each in _flat(part)]
    return [] if isinstance(view, Text) and not view.text else [view]
