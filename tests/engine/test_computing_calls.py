"""Conditions that only compute are asked without a guard; all others keep theirs."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerstep import DebugConsole
from layerstep.expressions.computing_calls import is_plain, only_computes


@pytest.mark.parametrize(
    "text",
    [
        "out.abs().max() > 1e6",
        "out[0].isnan().any() and forward > 3",
        "torch.isnan(out).any()",
        "out.float().std(dim=-1).max().item() > 2 * inp.std()",
        "name.startswith('h.') and out.max() > step",
        "out.dtype == torch.float16 or out.amax() == torch.inf",
        "kwargs.get('mask') is None",
    ],
)
def test_methods_of_tensors_and_functions_of_torch_only_compute(text: str) -> None:
    assert only_computes(ast.parse(text, mode="eval"))


@pytest.mark.parametrize(
    "text",
    [
        "out.abs_().max() > 1",
        "out.bernoulli().any()",
        "torch.rand(()) < 0.5",
        "torch.abs(inp, out=out).max() > 1",
        "mod(inp).max() > 1",
        "mod.weight.max() > 1",
        "print(out)",
        "len(out) > 3",
        "limit(out) > 3",
        "out.numpy().max() > 1",
        "out.register_hook(None)",
        "[x.max() for x in out][0] > 1",
        "(y := out.max()) > 1",
        "torch.nn.functional.dropout(out).max() > 1",
        "out.grad.max() > 1",
    ],
)
def test_what_may_act_or_is_not_known_keeps_its_guard(text: str) -> None:
    assert not only_computes(ast.parse(text, mode="eval"))


class Own(Tensor):
    """A tensor of the program's own class: its methods may do anything."""


def test_only_values_of_torchs_own_classes_are_plain() -> None:
    tensor = torch.ones(2)
    for value in (tensor, nn.Parameter(tensor), (tensor, None), [1, "a"], {"a": tensor}):
        assert is_plain(value)
    for other in (tensor.as_subclass(Own), (tensor.as_subclass(Own),), {"a": object()}, nn.Linear(1, 1)):
        assert not is_plain(other)
    assert not is_plain([tensor] * 1000)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def stops(model: nn.Module, condition: str, run: Callable[[], object], where: str = "first") -> list[int]:
    """In which of three forwards a breakpoint stops; how often it was asked comes last."""
    seen: list[int] = []
    lines = [f"break {where} if {condition}", "continue", *["print(forward)", "continue"] * 3]
    output = io.StringIO()
    with DebugConsole(model, commands=lines, output=output) as console:
        point = console.session.points.get(1)
        for forward in (1, 2, 3):
            before = point.hits
            run()
            seen += [forward] if point.hits > before else []
        assert point.tried == 3
    return seen


@pytest.mark.parametrize("condition", ["out.abs().max() > 5", "torch.amax(out) > 5", "inp.sum() > 9"])
def test_a_condition_that_computes_stops_where_it_holds(condition: str) -> None:
    model, given = Net(), iter([1.0, 3.0, 1.0])
    nn.init.ones_(model.first.weight)
    nn.init.zeros_(model.first.bias)
    assert stops(model, condition, lambda: model(torch.full((1, 4), next(given)))) == [2]


def test_the_programs_own_torch_is_asked() -> None:
    """The name means what it means in the function that called the module."""

    class Stand:
        def isnan(self, value: Tensor) -> Tensor:
            return torch.tensor(True)

    class Around(Net):
        def forward(self, x: Tensor) -> Tensor:
            torch = Stand()  # noqa: F841
            return self.first(x)

    model = Around()
    assert stops(model, "torch.isnan(out).any()", lambda: model(torch.ones(1, 4))) == [1, 2, 3]


def test_a_method_of_the_programs_own_tensor_keeps_its_guard() -> None:
    class Drawing(Tensor):
        def max(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            torch.rand(1)
            return torch.zeros(())

    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.as_subclass(Drawing)

    model = nn.Sequential(Made())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert stops(model, "out.max() > 5", lambda: model(torch.ones(2)), where="0") == []
    assert torch.equal(torch.rand(3), expected)


def test_a_condition_that_computes_is_not_seen_by_checkpointing() -> None:
    """Checkpointing counts the tensors that are saved, and raises if a recomputation saves others."""
    model = Net()

    def run() -> None:
        x = torch.ones(1, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()

    assert stops(model, "(out * out).exp().max() > 1e30", run) == []
