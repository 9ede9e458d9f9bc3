"""Paths and `$n` in Python, templates, and what is a whole line."""

from __future__ import annotations

import ast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerstep.errors import BadCondition
from layerstep.expressions.expression import Expression, Template, may_act, rewrite
from layerstep.line_syntax import is_complete, joined


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("h.1.attn.output", "__path__('h')[1].attn.output"),
        ("a.b.0", "__path__('a').b[0]"),
        ("out.std() > 1.5", "out.std() > 1.5"),
        ("$1 + $_", "__results__[1] + __results__[-1]"),
        ("'h.1.attn' + \"$1\"", "'h.1.attn' + \"$1\""),
        ("x  # h.1", "x  # h.1"),
        ("x[0].y", "x[0].y"),
        ("1.5e3 + x1.5", "1.5e3 + __path__('x1')[5]"),
        ("3.bias + 2.0.weight[0]", "__path__('3').bias + __path__('2')[0].weight[0]"),
        ("1.e5 + 2.0.real + 1.j + (1.if x else 2.)", "1.e5 + 2.0.real + 1.j + (1.if x else 2.)"),
        ("f(h.0.weight, h.1.weight)", "f(__path__('h')[0].weight, __path__('h')[1].weight)"),
    ],
)
def test_rewrite(text: str, python: str) -> None:
    assert rewrite(text) == python


@given(
    st.from_regex(
        r"[a-z_][a-z0-9_]{0,5}(\.[a-z_][a-z0-9_]{0,5}){0,3}( [-+*/] [0-9]{1,3}\.[0-9]{0,3})?", fullmatch=True
    )
)
def test_what_is_python_already_is_left_alone(text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError:
        return
    assert rewrite(text) == text


READING = {
    "out > 1": False,
    "h.1.weight": True,
    "out.grad_fn": False,
    "f(x)": True,
    "x +": True,
    "x = 1": True,
}


@pytest.mark.parametrize(("text", "calls"), READING.items())
def test_only_what_calls_needs_a_guard(text: str, calls: bool) -> None:
    assert may_act(text) is calls


@pytest.mark.parametrize("text", ["", "x +", "x = 3", "for x in y", "\0"])
def test_a_bad_expression_is_refused(text: str) -> None:
    with pytest.raises(BadCondition):
        Expression.parse(text)


def test_a_template_formats_and_fails_in_place() -> None:
    template = Template.parse("{name} {out.shape} {out.std():.3g} {nosuch} {{}} {x!r}")
    scope = {"name": "head", "out": torch.tensor([1.0, 3.0]), "x": "q"}
    assert template.format(scope) == "head [2] 1.41 <NameError: name 'nosuch' is not defined> {} 'q'"


def test_a_template_never_floods() -> None:
    assert Template.parse("{out}").format({"out": torch.zeros(1000)}) == "<(1000,)>"
    assert Template.parse("{out}").format({"out": torch.tensor(2.5)}) == "2.5"


@pytest.mark.parametrize("text", ["{out", "{1 +}", "{}"])
def test_a_bad_template_is_refused(text: str) -> None:
    with pytest.raises(BadCondition):
        Template.parse(text)


WHOLE = ["", "step", "x = 3", "out.shape", "break h.1 if x >", "commands 1 stats out", "!x", "print (", "in"]


@pytest.mark.parametrize("text", [*WHOLE, "for x in y:\n  z\n", "commands 1\nstats\nend", "nosuch command"])
def test_whole_lines(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize(
    "text", ["for x in y:", "for x in y:\n  z", "f(", "commands 1", "commands 1\nstats", "!f("]
)
def test_lines_that_go_on(text: str) -> None:
    assert not is_complete(text)


def test_a_file_of_commands_is_joined() -> None:
    text = "# a comment\nbreak h.1\n\ncommands 1\nstats out\nend\nfor x in y:\n  print(x)\n\nstep\n"
    assert joined(text) == ["break h.1", "commands 1\nstats out\nend", "for x in y:\n  print(x)\n", "step"]
