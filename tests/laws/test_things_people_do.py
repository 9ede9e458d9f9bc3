"""What people do with a model works as without us, with each instrument on."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from things import SLOW, THINGS, Net, hooks_of

INSTRUMENTS = (
    "break body.0",
    "break ** enter",
    "break head if False",
    "break body.0 backward",
    "break op:linear if False",
    "log ** '{name}'",
    "record **",
    "catch nonfinite",
    "catch exception",
    "catch exception in **",
    "profile on",
    "memory on",
    "leaks on",
    "watch --stop body.0.weight",
    "grad record",
)
MAIN = ("break body.0", "record **", "catch nonfinite", "catch exception in **", "profile on", "memory on")
QUICK = ("break head if False", "profile on")
"""With the things that are slow."""
CLOSELY = ("save_and_load", "load_weights_only", "deepcopy", "script", "trace", "signatures")
"""These read all that is on a model: they are tried with every instrument."""


def lines_for(name: str) -> tuple[str, ...]:
    if name in SLOW:
        return QUICK
    return INSTRUMENTS if name in CLOSELY else MAIN


CASES = [(name, line) for name in THINGS for line in lines_for(name)]


def made() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(3, 4)


def done(name: str, model: Net, x: Tensor) -> Any:
    torch.manual_seed(1)
    if name in SLOW:
        torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return THINGS[name](model, x)


@functools.cache
def bare(name: str) -> Any:
    model, x = made()
    model(x).sum().backward()
    return done(name, model, x)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("name, line", CASES)
def test_a_thing_is_as_without_us(name: str, line: str) -> None:
    expected = bare(name)
    model, x = made()
    said = io.StringIO()
    with DebugConsole(model, input=io.StringIO("continue\n" * 2000), output=said) as console:
        console.execute(line)
        model(x).sum().backward()
        found = done(name, model, x)
        is_attached = console.session.run.is_attached
    assert "bug in layerstep" not in said.getvalue() and is_attached, said.getvalue()[-600:]
    assert same(expected, found), (expected, found)
    assert not [each for each in hooks_of(model) if "layerstep" in repr(each)]
    assert isinstance(model, nn.Module)
