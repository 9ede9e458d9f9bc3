"""`export report.html`: the whole session in one small page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import torch
from torch import nn

from layerstep.engine.messages import Message
from layerstep.exports.conversation import MOST_MESSAGES, Conversation
from layerstep.exports.report import MOST_BYTES, report_page
from layerstep.views import Plot, Text
from zoo import console_on


class Words(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.elements = "", []

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)


def read(page: str) -> Words:
    words = Words()
    words.feed(page)
    return words


def train(lines: list[str]) -> tuple[nn.Module, str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    console, seen = console_on(model, lines)
    with console:
        for _ in range(30):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
            loss.backward()
            optimizer.step()
    assert seen.bugs == []
    return model, seen.text


def test_it_holds_every_stop_line_and_answer(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    lines = ["doctor on", "profile 3", "tbreak 2", "continue", "hist out", "graph", "print '<b>' * 2", "1/0"]
    lines += ["break 0 if step > 25", "continue", "where", f"export {file}", "delete", "continue"]
    train(lines)
    page = file.read_text()
    words = read(page)
    for typed in lines[:-3]:
        assert typed in words.text, typed
    for shown in (
        "2  done  Linear  forward 1",
        "ZeroDivisionError: division by zero",
        "<b><b>",
        "stale-gradients",
    ):
        assert shown in words.text, shown
    assert "<b><b>" not in page, "no answer is markup"
    assert words.elements.count("svg") >= 1 and words.elements.count("img") == 1
    assert "script" not in words.elements and not re.search(r'(?:src|href)="(?!data:)', page)
    assert len(page.encode()) < MOST_BYTES
    assert words.text.count("Where the time goes") == 1


def test_it_stays_under_its_size_and_says_what_is_left_out() -> None:
    console, _ = console_on(nn.Linear(1, 1), [])
    heard = console.session.instruments.get(Conversation)
    for number in range(60):
        heard.hear(Message("answer", Text("<" * 12_000), f"long {number}"))
    heard.hear(Message("answer", Text("short"), "last"))
    page = report_page(console.session, title="t")
    assert len(page.encode()) < MOST_BYTES
    left_out = page.count("This answer is left out")
    assert 0 < left_out < 60 and "short" in page and "long 59" in page


def test_what_it_keeps_is_bounded() -> None:
    console, _ = console_on(nn.Linear(1, 1), [])
    heard = console.session.instruments.get(Conversation)
    plot = Plot("heatmap", tuple((1.0,) * 100 for _ in range(100)))
    for _ in range(300):
        heard.hear(Message("answer", plot, "heatmap"))
    assert len(heard.messages) == 100 and heard.forgotten == 200
    for _ in range(MOST_MESSAGES + 10):
        heard.hear(Message("notice", Text("a")))
    heard.hear(Message("progress", Text("50 %")))
    assert len(heard.messages) == MOST_MESSAGES
    assert "earlier messages are not kept" in report_page(console.session, title="t")
