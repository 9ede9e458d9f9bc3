"""Names, messages and values of others reach no terminal as orders: each front end spells them out."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.cli import main
from layerstep.render.html import to_html
from layerstep.render.json import to_line
from layerstep.render.screen import make_console, to_rich, to_text
from layerstep.render.svg import to_svg
from layerstep.views import (
    Column,
    Fields,
    Group,
    Node,
    Notice,
    Plot,
    Source,
    Span,
    Stack,
    StackFrame,
    Table,
    Text,
    Tree,
)

ORDERS = {
    "colour": "\x1b[8m",
    "title": "\x1b]0;retitled\x07",
    "c1": "\x9b2J",
    "bidi": "\u202e",
    "isolate": "\u2066",
    "return": "\r",
    "backspace": "\b\b",
    "delete": "\x7f",
    "nul": "\0",
    "separator": "\u2028",
    "zero width": "\u200b",
    "tag": "\U000e0041",
    "half": "\ud83d",
}
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e0fff]"
)


def views_of(text: str) -> Group:
    frame = StackFrame(0, text, text, text, text, text, text, text)
    return Group(
        (
            Text(text),
            Notice(text, text),
            Fields((Span(text, "path"),), ((text, Text(text)),)),
            Table((Column(text, "path"), Column("b")), ((text, text),), title=text, note=text),
            Tree(Node(text, text, text, text, (Node(text),)), text),
            Source(text, 1, (text, text), 1, text),
            Stack((frame,), text),
            Plot("bar", ((1.0, 2.0),), title=text, labels=(text, text), names=(text,), note=text),
            Plot("heatmap", ((1.0, 2.0),), title=text, names=(text,), labels=(text, text), x_label=text),
        )
    )


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_no_front_end_passes_an_order_on(order: str) -> None:
    view = views_of(f"a{order}b")
    assert not UNSAFE.search(to_text(view))
    assert not UNSAFE.search(to_html(view))
    assert not any(UNSAFE.search(to_svg(part)) for part in view.views)
    screen = io.StringIO()
    make_console(screen, width=100, colour=True).print(to_rich(view))
    assert not UNSAFE.search(re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())), "only the colours are ours"
    assert "\x1b[8m" not in screen.getvalue()


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_json_stays_data_and_can_be_shown(order: str) -> None:
    line = to_line(Text(f"a{order}b"), kind="answer")
    assert not UNSAFE.search(line)
    assert json.loads(line)["view"]["text"] == f"a{order}b"


def test_an_escape_is_seen() -> None:
    assert to_text(Text("a\x1b[2Jb\x9b")) == r"a\x1b[2Jb\x9b"
    assert to_text(Text("名前 μ ✓ é")) == "名前 μ ✓ é"
    assert to_text(Text("two\nlines")) == "two\nlines"


def test_a_name_stays_on_its_line_and_is_bounded() -> None:
    shown = to_text(Tree(Node("a\n✓ all is well\tnow", "Net")))
    assert shown == r"a\n✓ all is well\tnow  Net"
    long = to_text(Fields((Span("x" * 100_000, "path"),), ()), width=100)
    assert len(long) < 400 and "…" in long


class Bad(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("\x1b]0;retitled\x1b\\ \x1b[8mhidden")


class Odd:
    def __repr__(self) -> str:
        return "\x1b[2Jodd"


def test_a_session_shows_what_it_shows_as_text(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential()
    model.add_module("a\x1b[2Jb", nn.Linear(2, 2))
    model.add_module("bad", Bad())
    lines = [
        "tree",
        "where",
        "odd",
        "print odd",
        'log bad "{odd}"',
        "transcript t.txt",
        "tree",
        "info breaks",
        "continue",
        "where",
        "list",
    ]
    out = io.StringIO()
    with DebugConsole(model, input=io.StringIO("\n".join(lines) + "\n"), output=out) as console:
        console.session.run.scope["odd"] = Odd()
        console.execute("break **")
        with pytest.raises(ValueError) as caught:
            model(torch.ones(1, 2))
    assert r"a\x1b[2Jb" in out.getvalue() and "\\x1b[2Jodd" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\x1b" not in (tmp_path / "t.txt").read_text()
    assert not any("\x1b" in note for note in getattr(caught.value, "__notes__", []))


def test_what_a_typed_line_prints_keeps_its_colours_and_no_other_order() -> None:
    out = io.StringIO()
    console = DebugConsole(nn.Linear(1, 1), output=out)
    view = console.execute("for text in ['\\x1b[31mred\\x1b[0m \\x1b]0;retitled\\x07']: print(text)\n")
    assert view is not None
    screen = io.StringIO()
    make_console(screen, colour=True).print(to_rich(view))
    assert "\x1b[31mred" in screen.getvalue() and "\x1b]" not in screen.getvalue()
    assert "red" in to_text(view) and "\x1b" not in to_text(view)


def test_the_command_line_too(capsys) -> None:
    assert main(["run", "no\x1b[8msuch.py"]) == 2
    assert capsys.readouterr().err == "layerstep: cannot read no\\x1b[8msuch.py; No such file or directory\n"
