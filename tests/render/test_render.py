"""Views as text and as JSON: wrapping, bounds, odd numbers, no colour where none is wanted."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest

from layerstep.engine.messages import Message
from layerstep.frontends.output import JsonLines
from layerstep.render.json import to_json, to_line
from layerstep.render.screen import make_console, to_rich, to_text
from layerstep.tensors.format import human_bytes, number
from layerstep.views import (
    Column,
    Fields,
    Group,
    Node,
    Notice,
    Source,
    Span,
    Stack,
    StackFrame,
    Table,
    TensorView,
    Text,
    Tree,
    View,
)

TENSOR = TensorView(
    "f32", (8, 12, 64, 64), "cpu", mean=0.02, std=0.98, min=-2.3, max=3.4, zero=11797, count=393216,
    nbytes=2_400_000, requires_grad=True,
)  # fmt: skip
EVERY: list[View] = [
    Text("plain"),
    Notice("said", "hint", "warn"),
    TENSOR,
    Fields((Span("title", "path"),), (("a", TENSOR), ("b", Text("x" * 200)))),
    Table((Column("name"), Column("number", right=True)), (("a", "1"), ("b" * 100, "2")), "title", "note"),
    Tree(Node("root", "Net", "12", "←", (Node("child " * 30, "Linear"),)), "note"),
    Source("model.py", 9, ("def f():", "    return 1"), 10, "f"),
    Stack((StackFrame(0, "a.b", "Linear", "done", "f32[2]", "f32[2]", "m.py:3", "self.b(x)", True),)),
    Group((Text("one"), Text("two"))),
]


def test_the_tensor_line() -> None:
    line = "f32[8, 12, 64, 64] cpu  μ 0.02 σ 0.98  [-2.3, 3.4]  nan 0 inf 0 zero 3%  2.4 MB  grad"
    assert to_text(TENSOR, width=100) == line


def test_the_tensor_line_wraps_between_its_parts() -> None:
    lines = to_text(TENSOR, width=60).splitlines()
    assert lines == [
        "f32[8, 12, 64, 64] cpu  μ 0.02 σ 0.98  [-2.3, 3.4]",
        "  nan 0 inf 0 zero 3%  2.4 MB  grad",
    ]


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (TensorView("bool", (4,), "cpu", mean=0.5, zero=2, count=4, nbytes=4), "bool[4] cpu  true 50%  4 B"),
        (TensorView("i64", (), "cpu", mean=3.0, count=1, nbytes=8), "i64[] cpu  = 3  8 B"),
        (TensorView("f32", (0, 3), "cpu", nbytes=0), "f32[0, 3] cpu  0 B"),
        (TensorView("f32", (3,), "meta", "meta", note="no values"), "f32[3] meta meta  no values"),
        (TensorView("f32", (2, -1), "cpu", "nested"), "f32[2, *] cpu nested"),
        (replace(TENSOR, sampled=1000, zero=0), "sample of 1,000"),
    ],
)
def test_tensors_of_other_kinds(view: TensorView, line: str) -> None:
    assert line in to_text(view, width=120)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("view", EVERY, ids=lambda view: type(view).__name__)
def test_nothing_is_wider_than_the_screen(view: View, width: int) -> None:
    wide = [line for line in to_text(view, width=width).splitlines() if len(line) > width]
    assert not wide or isinstance(view, TensorView | Fields)  # a part of the line is never torn


@pytest.mark.parametrize("view", EVERY, ids=lambda view: type(view).__name__)
def test_every_view_is_one_line_of_json(view: View) -> None:
    line = to_line(view, kind="answer", line="where")
    assert "\n" not in line
    document = json.loads(line)
    assert document["layerstep"] == 2 and document["view"]["view"] == type(view).__name__.lower()


def test_json_has_no_nan() -> None:
    document = to_json(replace(TENSOR, mean=math.nan, max=math.inf))
    assert document["mean"] == "nan" and document["max"] == "inf"
    assert json.loads(to_line(replace(TENSOR, mean=math.nan), kind="stop"))


def test_json_lines_leave_resumes_out() -> None:
    file = io.StringIO()
    write = JsonLines(file)
    write(Message("stop", Text("a")))
    write(Message("resume", Text(""), "continue"))
    assert len(file.getvalue().splitlines()) == 1


def test_colour_only_where_it_is_wanted() -> None:
    for colour, found in ((False, False), (True, True), (None, False)):
        console = make_console(io.StringIO(), width=80, colour=colour)
        console.print(to_rich(EVERY[3]))
        assert ("\x1b[" in console.file.getvalue()) is found  # type: ignore[attr-defined]


def test_text_is_not_taken_for_markup() -> None:
    assert to_text(Text("[bold]x[/bold] :smile:")) == "[bold]x[/bold] :smile:"
    assert to_text(Notice("[0] and [/]")) == "· [0] and [/]"


def test_numbers_are_short() -> None:
    assert [number(x) for x in (0.0, 1.0, 1234.5, 1e-9, 1.5e12, math.inf)] == [
        "0",
        "1",
        "1.23e3",
        "1e-9",
        "1.5e12",
        "inf",
    ]
    assert [human_bytes(x) for x in (0, 999, 1000, 2_400_000, 5 * 10**9, 10**13)] == [
        "0 B", "999 B", "1.0 kB", "2.4 MB", "5.0 GB", "10.0 TB",
    ]  # fmt: skip
