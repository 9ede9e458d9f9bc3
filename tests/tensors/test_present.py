"""Values on the screen: a container shows all that it holds, a tensor in it as its line, never a flood."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from layerstep import DebugConsole
from layerstep.render.screen import to_text
from layerstep.tensors.present import MOST_LEAVES, present

X = torch.arange(24.0).reshape(4, 6)
Pair = namedtuple("Pair", "first second")


@dataclass
class Batch:
    x: torch.Tensor
    name: str


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((X, 3, "hi"), ["[0]  f32[4, 6]", "[1]  3", "[2]  'hi'"]),
        ({"loss": X, "lr": 2.83e-8, "n": None}, ["['loss']  f32[4, 6]", "2.83e-08", "['n']     None"]),
        ([1, (X, [2, X])], ["[0]        1", "[1][0]     f32[4, 6]", "[1][1][0]  2", "[1][1][1]  f32[4, 6]"]),
        (Batch(X, "train"), [".x     f32[4, 6]", ".name  'train'"]),
        (Pair(7, X), [".first   7", ".second  f32[4, 6]"]),
        ((X, nn.Linear(2, 3)), ["[1]  Linear(in_features=2"]),
        ({X}, ["{0}  f32[4, 6]"]),
        (((), {}, X), ["[0]  ()", "[1]  {}", "[2]  f32[4, 6]"]),
    ],
)
def test_a_container_keeps_what_is_no_tensor(value: Any, words: list[str]) -> None:
    text = to_text(present(value), width=100)
    assert all(word in text for word in words), text


def test_a_container_that_holds_itself_is_no_flood() -> None:
    value: list[Any] = [X, 1]
    value.append(value)
    text = to_text(present(value), width=100)
    assert "tensor(" not in text and "[1]  1" in text


LEAVES = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=300), st.just(X), st.none())
TREES = st.recursive(
    LEAVES, lambda child: st.lists(child) | st.dictionaries(st.text(max_size=20), child), max_leaves=80
)


@settings(deadline=None)
@given(TREES)
def test_any_container_is_bounded(value: Any) -> None:
    lines = to_text(present((X, value)), width=100).splitlines()
    assert "f32[4, 6]" in lines[1]
    assert len(lines) <= 4 * (MOST_LEAVES + 2)


@pytest.mark.parametrize("word", ["print ", "", "inspect "])
def test_print_and_bare_expressions_keep_the_rest(word: str) -> None:
    model = nn.Linear(6, 2)
    console = DebugConsole(model, commands=["break **", "continue"])
    seen: list[str] = []
    console.session.listen(lambda message: seen.append(to_text(message.view, width=100)))
    console.session.prompt.script.append(f"{word}(out, 7, 'seven')")
    console.run(X)
    text = "\n".join(seen)
    assert "[0]  f32[4, 2]" in text and "[1]  7" in text and "[2]  'seven'" in text
