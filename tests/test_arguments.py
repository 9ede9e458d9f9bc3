"""One declaration makes the usage, the parser and the messages of a command."""

from __future__ import annotations

from typing import Any

import pytest

from layerstep.argument_parsing import parse, pieces_of
from layerstep.arguments import (
    Choice,
    Condition,
    Expr,
    File,
    Flag,
    Form,
    Keyword,
    Number,
    Option,
    Path,
    Quoted,
    Real,
    Rest,
    Text,
    Where,
    Word,
)
from layerstep.errors import BadArguments
from layerstep.forms import Declared, forms_of, usage_of
from layerstep.registry import find_command

X = Expr("X", optional=True)
HIST = (X, Option("bins", Number("N", least=1, most=1000, default=36)), Flag("log"))
TOP = (X, Number("K", default=5))
HEATMAP = (X, Number("ROWS COLUMNS", least=None, count=2, optional=True, name="dims"))
COUNT = Number("N", least=1, default=1, what="count")
STEP = (COUNT, Form("op", COUNT), Form("line", COUNT))
BREAK = (
    Where("WHERE | FILE:LINE", optional=True),
    Keyword("in", Word("WHERE", name="inside")),
    Choice("enter|exit|backward", default="exit", name="phase"),
    Condition(),
)
CATCH = (
    Form("nan|inf", Choice("forward|backward", many=True, optional=True, name="sides", what="side")),
    Form("slow", Word("MS"), Where(optional=True)),
)
PROFILE = (
    Form(""),
    Form("", Number("N", least=1, most=100_000), Flag("report")),
    Form("on"),
    Form("report", Option("by", Choice("module|type|op", default="module"))),
    Form("save", Word("NAME", what="a name"), Flag("add")),
)
UNTIL = (Expr("EXPR", name="target"), Form("forward", Number("N", what="forward number")))
SAVE = (Expr("X", what="a value"), File())
LOG = (Where(), Quoted('"text"', name="text", what="a text in quotes"), Condition())
BLOCK = (Word("N", what="a point"), Rest("LINES", optional=True))
ATTENTION = (Where(optional=True), Option("tokens", Expr("EXPR")), Option("head", Number("N")))
MEMORY = (Path(optional=True), Form("", Number("N", least=1, what="number of steps")), Form("on"))


@pytest.mark.parametrize(
    "declared, usage",
    [
        ((), ""),
        (HIST, "[X] [--bins N] [--log]"),
        (STEP, "[N] | op [N] | line [N]"),
        (BREAK, "[WHERE | FILE:LINE] [in WHERE] [enter|exit|backward] [if EXPR]"),
        (CATCH, "nan|inf [forward|backward] | slow MS [WHERE]"),
        (PROFILE, "[N [--report] | on | report [--by module|type|op] | save NAME [--add]]"),
        (Rest("TEXT"), "TEXT"),
    ],
)
def test_the_usage_is_made_of_the_declaration(declared: Declared, usage: str) -> None:
    assert usage_of(forms_of(declared)) == usage


@pytest.mark.parametrize(
    "declared, line, values",
    [
        (HIST, "", {"x": "", "bins": 36, "log": False}),
        (HIST, "out --bins 9 [0] --log", {"x": "out [0]", "bins": 9, "log": True}),
        (HIST, "out --bins=9", {"x": "out", "bins": 9}),
        (HIST, "x - -y", {"x": "x - -y"}),
        (HIST, "f(a, --log)", {"x": "f(a, --log)", "log": False}),
        (HIST, "'a --log'", {"x": "'a --log'", "log": False}),
        (TOP, "out[0, 1] 8", {"x": "out[0, 1]", "k": 8}),
        (TOP, "out, 3", {"x": "out", "k": 3}),
        (TOP, "out - 5", {"x": "out - 5", "k": 5}),
        (TOP, "a if b else 3", {"x": "a if b else 3", "k": 5}),
        (TOP, "8", {"x": "", "k": 8}),
        (HEATMAP, "out 2 -1", {"x": "out", "dims": (2, -1)}),
        (HEATMAP, "out 1", {"x": "out 1", "dims": None}),
        (STEP, "", {"n": 1, "form": ""}),
        (STEP, "op 3", {"n": 3, "form": "op", "typed": "op 3"}),
        (BREAK, "enter", {"where": "", "phase": "enter"}),
        (BREAK, "head enter if a --b", {"where": "head", "phase": "enter", "condition": "a --b"}),
        (BREAK, "op:mm in h.1", {"where": "op:mm", "inside": "h.1", "phase": "exit", "condition": ""}),
        (BREAK, "my file.py:3", {"where": "my file.py:3"}),
        (CATCH, "nan backward forward", {"form": "nan", "sides": ("backward", "forward")}),
        (CATCH, "slow 5 h.*", {"form": "slow", "ms": "5", "where": "h.*"}),
        (PROFILE, "5 --report", {"n": 5, "report": True, "form": ""}),
        (PROFILE, "report --by type", {"by": "type", "form": "report"}),
        (PROFILE, "save --add it", {"name": "it", "add": True}),
        (UNTIL, "forward 3", {"n": 3, "form": "forward"}),
        (UNTIL, "forward > 3", {"target": "forward > 3", "form": ""}),
        (SAVE, 'out[0, 1], "a b.npy"', {"x": "out[0, 1]", "file": "a b.npy"}),
        (LOG, "h \"{out} if 'x'\" if y", {"where": "h", "text": "{out} if 'x'", "condition": "y"}),
        (BLOCK, "1 stats --params; c", {"n": "1", "lines": "stats --params; c"}),
        (BLOCK, "1\na  b\nend", {"n": "1", "lines": "a  b\nend"}),
        (ATTENTION, 'h.1 --tokens "a b" + x --head 3', {"tokens": '"a b" + x', "head": 3, "where": "h.1"}),
        (MEMORY, "2", {"n": 2, "path": ""}),
        (MEMORY, "h.2", {"n": None, "path": "h.2"}),
        (Choice("breaks|locals|backward", name="topic"), "loc", {"topic": "locals"}),
        (Real("TOL"), "1e-3", {"tol": 1e-3}),
        (Rest("TEXT"), "--x  'a", {"text": "--x  'a"}),
    ],
)
def test_a_line_is_read_by_the_declaration(declared: Declared, line: str, values: dict[str, Any]) -> None:
    given = vars(parse("cmd", forms_of(declared), line))
    assert {name: given[name] for name in values} == values


@pytest.mark.parametrize(
    "declared, line, words",
    [
        ((), "x", "'x' is too much; usage: cmd"),
        ((), "--x", "no option --x; usage: cmd"),
        (HIST, "out --bin 3", "no option --bin; did you mean --bins? there is --bins, --log"),
        (HIST, "out --nosuch", "no option --nosuch; there is --bins, --log"),
        (HIST, "--bins 0", "--bins takes 1 to 1000; usage: cmd [X] [--bins N] [--log]"),
        (HIST, "--bins", "--bins needs a value; usage: cmd [X] [--bins N] [--log]"),
        (HIST, "--bins --log", "--bins needs a value; usage: cmd [X] [--bins N] [--log]"),
        (HIST, "--log=1", "--log takes no value; usage: cmd [X] [--bins N] [--log]"),
        (STEP, "0", "'0' is no count; usage: cmd [N] | op [N] | line [N]"),
        (STEP, "line x", "'x' is no count; usage: cmd line [N]"),
        (STEP, "lime", "cmd has no 'lime'; did you mean line? there is op, line, or N"),
        (BREAK, "head if", "an expression is missing; usage: cmd [WHERE | FILE:LINE] [in WHERE]"),
        (BREAK, "head sideways", "'sideways' is too much; usage: cmd [WHERE"),
        (BREAK, "op:mm in", "in needs WHERE; usage: cmd [WHERE"),
        (CATCH, "", "cmd what?; one of nan, inf, slow"),
        (CATCH, "fire", "cmd has no 'fire'; there is nan, inf, slow"),
        (CATCH, "nan sideways", "no side 'sideways'; there is forward, backward"),
        (CATCH, "slow", "cmd slow needs MS; usage: cmd slow MS [WHERE]"),
        (PROFILE, "0", "N takes 1 to 100,000, not 0; usage: cmd N [--report]"),
        (PROFILE, "3 now", "'now' is too much; usage: cmd N [--report]"),
        (PROFILE, "report --by layer", "--by 'layer' is unknown; there is module, type, op"),
        (PROFILE, "save", "cmd save needs a name; usage: cmd save NAME [--add]"),
        (UNTIL, "forward x", "'x' is no forward number; usage: cmd forward N"),
        (SAVE, "out", "cmd needs a value and a file; usage: cmd X FILE"),
        (LOG, "head", "cmd needs WHERE and a text in quotes; usage: cmd WHERE"),
        (LOG, r'head "\x"', r'"\x" cannot be read'),
        (BLOCK, "--x", "no option --x; usage: cmd N [LINES]"),
        (ATTENTION, "--head x", "--head takes a number from 0, not 'x'; usage: cmd [WHERE]"),
        (MEMORY, "0", "'0' is no number of steps; usage: cmd [PATH] | N | on"),
        (Real("TOL", what="norm"), "-1", "'-1' is no norm; usage: cmd TOL"),
        (Choice("breaks|backward", name="topic"), "b", "no topic 'b'; there is breaks, backward"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(declared: Declared, line: str, words: str) -> None:
    with pytest.raises(BadArguments) as caught:
        parse("cmd", forms_of(declared), line)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, words",
    [
        ("a  b", ["a", "b"]),
        ("f(a, b) [1, 2]", ["f(a, b)", "[1, 2]"]),
        ("'a b' c", ["'a b'", "c"]),
        ("it's /[/ a)", ["it's", "/[/", "a)"]),
    ],
)
def test_quotes_and_brackets_hold_a_word_together(text: str, words: list[str]) -> None:
    assert [piece.text for piece in pieces_of(text)] == words


def test_two_arguments_cannot_both_take_what_is_left() -> None:
    with pytest.raises(ValueError, match="only one argument"):
        Form("", Expr("X"), Text("Y"))


def test_a_pattern_after_the_word_of_a_form_is_no_python() -> None:
    command = find_command("grad")
    assert command is not None
    assert command.parse("dead **").form == "dead" and command.parse("dead **").where == "**"
    assert command.parse("dead * 2").form == ""
