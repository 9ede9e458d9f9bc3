"""`edit PATH.grad` and `edit PATH.weight.grad`: where they act, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from zoo import console_on, taps_on

X = torch.linspace(-1, 1, 24).view(2, 3, 4)


def train(*lines: str) -> tuple[list[Tensor], list[Tensor], str]:
    """Of each of three steps: the gradient of the input, and how the last bias moved. And the screen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients, moves = [], []
    console, seen = console_on(model, [*lines, "delete", "continue"] if "continue" in lines else lines)
    with console:
        for _ in range(3):
            given, before = X.clone().requires_grad_(), model[2].bias.detach().clone()
            optimizer.zero_grad()
            model(given).sum().backward()
            optimizer.step()
            assert given.grad is not None
            gradients.append(given.grad)
            moves.append(model[2].bias.detach() - before)
    assert not seen.bugs and not taps_on(model), seen.text
    return gradients, moves, " ".join(seen.text.split())


@pytest.mark.parametrize(
    "line, acts",
    [
        ("edit 2.bias.grad 0", [True, True, True]),
        ("edit 2.bias.grad 0 for 2", [True, True, False]),
        ("edit 2.bias.grad 0 if step == 1", [False, True, False]),
        ("edit 2.bias.grad 0 if grad.isnan().any()", [False, False, False]),
    ],
)
def test_the_gradient_of_a_parameter_is_edited_in_the_steps_that_are_meant(
    line: str, acts: list[bool]
) -> None:
    _, moves, text = train(line)
    assert [not bool(move.any()) for move in moves] == acts, text


def test_tokens_are_those_of_the_gradient() -> None:
    (plain, *_), _, _ = train()
    (edited, *_), _, _ = train("edit 0.grad 0 tokens 1")
    assert not edited[:, 1].any()
    assert torch.equal(edited[:, 0], plain[:, 0]) and torch.equal(edited[:, 2], plain[:, 2])


@pytest.mark.parametrize("name", ["0.grad", "2.bias.grad"])
@pytest.mark.parametrize("value", ["torch.ones(7)", "grad.nosuch"])
def test_what_does_not_fit_is_told_and_the_run_goes_on(name: str, value: str) -> None:
    plain, moves, _ = train()
    same, same_moves, text = train(f"edit {name} {value}")
    assert "the gradient stays" in text
    assert all(map(torch.equal, plain, same)) and all(map(torch.equal, moves, same_moves))


@pytest.mark.parametrize(
    "line, said",
    [
        ("edit 2.bias.grad 0 tokens 1", "2.bias is a parameter: call and tokens are for modules"),
        ("edit 2.bias.grad 0 call 1", "2.bias is a parameter: call and tokens are for modules"),
        ("edit 0.grad 0 --cut", "--through and --cut are for values, and this is a gradient"),
        ("skip 1 --bare tokens 1", "--bare skips whole calls"),
    ],
)
def test_what_would_do_nothing_is_refused(line: str, said: str) -> None:
    plain, moves, _ = train()
    same, same_moves, text = train("break 2", "continue", line)
    assert said in text
    assert all(map(torch.equal, plain, same)) and all(map(torch.equal, moves, same_moves))


@pytest.mark.parametrize("name", ["0.grad", "2.bias.grad"])
def test_whatif_makes_no_edit_of_a_gradient(name: str) -> None:
    plain, moves, _ = train()
    same, same_moves, text = train("break 2", "continue", f"whatif edit {name} 0", "perturbed?")
    assert "an edit of a gradient changes no output" in text and "✓ no:" in text
    assert all(map(torch.equal, plain, same)) and all(map(torch.equal, moves, same_moves))
