"""The shape of a line: several expressions, long paths."""

from __future__ import annotations

import pytest

from layerstep.line_syntax import expressions, is_expression
from layerstep.render.names import shortened


@pytest.mark.parametrize(
    "text, found",
    [
        ("out", ["out"]),
        ("out inp", ["out", "inp"]),
        ("out, inp", ["out", "inp"]),
        ("(out, inp)", ["(out, inp)"]),
        ("out + 1 inp", ["out + 1", "inp"]),
        ("out[0, :4] inp", ["out[0, :4]", "inp"]),
        ("f(a, b) $1", ["f(a, b)", "$1"]),
        ("h.0.attn h.1.attn.output", ["h.0.attn", "h.1.attn.output"]),
        ("out out@-1", ["out", "out@-1"]),
        ("h.* out", ["h.*", "out"]),
        ("", []),
    ],
)
def test_a_line_of_expressions(text: str, found: list[str]) -> None:
    assert expressions(text) == found


def test_a_glob_is_no_expression() -> None:
    assert is_expression("h.0.attn") and is_expression("out[0, :4] * 2") and is_expression("$1")
    assert not any(map(is_expression, ("h.*", "**", "type:Linear", "/norm$/", "")))


def test_a_long_path_keeps_its_head_and_its_tail() -> None:
    assert shortened("h.0.attn.c_attn.weight", 18) == "h.0….c_attn.weight"
    assert shortened("h.0.attn", 18) == "h.0.attn"
    assert len(shortened("a" * 50, 20)) == 20
