"""What is said of an edit: that it never acted, and that others keep the old value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from zoo import console_on, taps_on

X = torch.linspace(-1, 1, 12).view(3, 4)


def told(model: nn.Module, *lines: str, x: Tensor = X, forwards: int = 1) -> str:
    console, seen = console_on(model, lines)
    with console:
        for _ in range(forwards):
            model(x)
    assert not seen.bugs and not taps_on(model), seen.text
    return " ".join(seen.text.split())


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.inner(x)
        return self.last


class Flat(nn.Module):
    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.inner, self.flatten, self.copies = nn.Linear(4, 4), nn.Flatten(0), copies

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return self.flatten(x.t() if self.copies else x)


class Cached(nn.Module):
    """Returns a part of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("all", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.all[:3] = x  # type: ignore[index]
        return self.all[:3]  # type: ignore[index]


def test_an_attribute_that_keeps_the_old_value_is_named() -> None:
    text = told(nn.Sequential(Keeps()), "edit 0 out * 0", "continue", forwards=3)
    assert text.count("edit 1: 0.last keeps the old value: it is the same tensor") == 1


def test_a_view_of_the_input_is_named() -> None:
    text = told(Flat(copies=False), "edit flatten out * 0", "continue", forwards=3)
    assert text.count("flatten returns a view of its input, which keeps the old value") == 1


def test_a_view_of_what_the_module_holds_is_named() -> None:
    text = told(nn.Sequential(Cached()), "edit 0 out * 0", "continue")
    assert "0 returns a view of a tensor that the program holds, too" in text


@pytest.mark.parametrize("line", ["edit inner out * 0", "edit flatten out * 0", "edit inner inp = inp * 0"])
def test_nothing_is_said_where_no_other_has_the_value(line: str) -> None:
    text = told(Flat(copies=True), line, "continue")
    assert "old value" not in text and "view" not in text, text


def test_a_batch_of_tokens_makes_a_linear_return_a_view_that_no_other_holds() -> None:
    text = told(nn.Sequential(nn.Linear(4, 4)), "edit 0 out * 0", "continue", x=torch.ones(2, 3, 4))
    assert "view" not in text, text


def test_set_says_it_too() -> None:
    text = told(nn.Sequential(Keeps()), "break 0", "continue", "set out = 0", "continue")
    assert "0.last keeps the old value" in text


@pytest.mark.parametrize(
    "line, said",
    [
        ("edit 0 out * 0 call 2", "the last call was call 1 of its forward, not call 2"),
        ("edit 0 0 tokens 7", "no token of tokens 7:8 is among the 3 of the call"),
        ("edit 0 0 if out.isnan().any()", "reached 2 times, the condition never held"),
        ("edit 0.grad grad * 0", "what 0 returned needs no gradient"),
    ],
)
def test_an_edit_that_never_acted_says_why(line: str, said: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)
    text = told(model, line, "break 1 if forward == 2", "continue", "info breaks", "why-not 1", forwards=2)
    assert text.count(said) >= 1 and said in text.partition("why-not 1")[2], text


def test_tokens_that_are_not_in_a_call_are_not_counted() -> None:
    text = told(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "edit 0 0 tokens 7", "break 1", "continue", "perturbed?"
    )
    assert "not yet: no token of tokens 7:8 is among the 3 of the call" in text
