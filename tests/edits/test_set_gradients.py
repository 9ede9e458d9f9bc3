"""`set grad` at a stop in the backward pass: what the pass goes on with, once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from zoo import console_on, hook_count, taps_on

X = torch.linspace(-1, 1, 12).view(3, 4)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def gradients(model: nn.Module, *lines: str, x: Tensor = X, passes: int = 1) -> tuple[list[Tensor], str]:
    """The gradients after these lines; the first stop is where the forward begins."""
    console, seen = console_on(model, lines)
    hooks = hook_count(model)
    with console:
        for _ in range(passes):
            model.zero_grad()
            model(x).square().sum().backward()
    assert not seen.bugs and not taps_on(model) and hook_count(model) == hooks, seen.text
    found = [each.grad for each in model.parameters() if each.grad is not None]
    return found, seen.text


def by_hand(replace: dict[int, float]) -> list[Tensor]:
    """The same where the gradient of the output of a layer is multiplied."""
    model = small()
    x = X
    for at, layer in enumerate(model):
        x = layer(x)
        if at in replace:
            factor = replace[at]
            x.register_hook(lambda grad, factor=factor: grad * factor)
    x.square().sum().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["grad", "grad_in"])
def test_the_gradient_of_the_input_is_set_where_the_pass_has_gone_through(name: str) -> None:
    lines = ("break 2 backward", "continue", f"set {name} = {name} * 3", "continue")
    found, text = gradients(small(), *lines)
    assert same(found, by_hand({1: 3.0})), text
    assert "grad of 2 is replaced" in text or "grad_in of 2 is replaced" in text


@pytest.mark.parametrize("name", ["grad", "grad_out"])
def test_the_gradient_of_the_output_is_set_where_the_pass_enters(name: str) -> None:
    lines = ("break 2 backward", "continue", "into", f"set {name} = {name} * 3", "delete", "continue")
    found, text = gradients(small(), *lines)
    assert "1  backward entered" in text and same(found, by_hand({1: 3.0})), text


def test_a_part_is_set_and_the_stop_and_outer_modules_show_it() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.first(x))

    lines = ("break inner.0 backward", "break inner backward", "continue", "set grad[0] = 7", "grad_in[0, 1]")
    _, text = gradients(Outer(), *lines, "continue", "grad_in[0, 1].item()", "continue")
    assert text.count("= 7") >= 1 and "$2" in text and "7.0" in text.partition("$2")[2], text


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.inner(x)


def test_what_goes_past_the_module_is_still_added() -> None:
    model = Residual()
    found, text = gradients(model, "break inner backward", "continue", "set grad = 0", "continue")
    other = Residual()
    x = other.first(X)
    (x + other.inner(x.detach())).square().sum().backward()
    wanted = other.first.weight.grad
    assert wanted is not None and torch.allclose(found[0], wanted, atol=1e-6), text


class Computed(nn.Module):
    """The input of the layer is made by no module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.weight)


def test_an_input_that_no_module_has_made_gets_it_too() -> None:
    model = Computed()
    found, text = gradients(model, "break layer backward", "continue", "set grad = 1", "continue")
    assert torch.allclose(found[0], X.sum(0)), text


def test_it_acts_in_this_pass_only_and_can_be_taken_back_while_it_stands() -> None:
    plain, _ = gradients(small())
    lines = ("break 2 backward", "continue", "set grad = 0", "delete", "continue")
    found, _ = gradients(small(), *lines, passes=2)
    assert same(found, plain)
    found, text = gradients(small(), "break 2 backward", "continue", "set grad = 0", "undo", "continue")
    assert same(found, plain), text
    _, text = gradients(
        small(), "break 2 backward", "continue", "set grad = 0", "step", "perturbed?", "continue"
    )
    assert "acted in the backward pass of forward 1" in text


@pytest.mark.parametrize(
    "line, said",
    [
        ("set grad_out = 0", "grad_out of 2 was used already"),
        ("set grad = torch.ones(5)", "grad_in has the shape [3, 4], and the value [5]"),
        ("set out = 0", "no call of a module begins or ends here"),
        ("set grad = nosuch", "NameError"),
    ],
)
def test_what_cannot_be_set_is_refused_and_the_pass_goes_on(line: str, said: str) -> None:
    found, text = gradients(small(), "break 2 backward", "continue", line, "continue")
    assert said in text and same(found, gradients(small())[0])


def test_in_the_forward_it_says_where_gradients_can_be_set() -> None:
    _, text = gradients(small(), "break 1", "continue", "set grad = 0", "edit 1 grad = 0", "continue")
    assert "`break 1 backward` stops at one" in " ".join(text.split()) and "edit 1.grad 0" in text


def test_detach_at_the_stop_keeps_what_was_set() -> None:
    found, text = gradients(small(), "break 2 backward", "continue", "set grad = grad * 3", "detach")
    assert same(found, by_hand({1: 3.0})), text


def test_at_an_autograd_node_the_gradient_that_it_is_given_is_set() -> None:
    lines = ("break 2 backward", "continue", "into", "into", "set grad = grad * 3", "delete", "continue")
    found, text = gradients(small(), *lines)
    assert "at TanhBackward0" in text and same(found, by_hand({1: 3.0})), text
