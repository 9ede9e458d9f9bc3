"""`diff --step`: what the edits change in the gradients and the step, while the run stands still."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from zoo import console_on, taps_on

X = torch.linspace(-1, 1, 12).view(3, 4)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def train(*lines: str, steps: int = 3, kind: type = torch.optim.AdamW) -> tuple[list[Tensor], str]:
    model = small()
    optimizer = kind(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    console, seen = console_on(model, lines)
    with console:
        for _ in range(steps):
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
    assert not seen.bugs and not taps_on(model), seen.text
    state = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    return copy.deepcopy([each for each in state if each is not None]), " ".join(seen.text.split())


DIFF = "diff --step metric out.square().mean()"


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_the_run_is_bit_equal_whatever_two_steps_show(kind: type) -> None:
    bare, _ = train(kind=kind)
    lines = ("break 3 if forward == 2", "continue", "scale 0 2", DIFF, DIFF, "undo all", "delete", "continue")
    found, text = train(*lines, kind=kind)
    assert all(torch.equal(a, b) for a, b in zip(bare, found, strict=True)), text
    assert "loss:" in text and "of 6 parameters differ" in text and "after the step by" in text


def test_its_numbers_are_those_of_the_step_with_and_without() -> None:
    """The distances told, against two trainings that really go on with the edit and without."""
    lines = ("break Sequential enter if forward == 3", "continue", "edit 3 out * 3", DIFF, "undo", "continue")
    _, text = train(*lines)
    plain, _ = train()
    edited, _ = train("edit 3 out * 3 if forward == 3", "continue")
    names = [*small().state_dict(), *(f"{name}.grad" for name, _ in small().named_parameters())]
    at = names.index("3.weight.grad")
    wanted = float((edited[at] - plain[at]).norm() / plain[at].norm())
    row = text.partition("after the step by")[2].partition("3.weight ")[2].split()
    assert float(row[0]) == pytest.approx(wanted, rel=0.01), text
    at = names.index("3.weight")
    assert float(row[1]) == pytest.approx(float((edited[at] - plain[at]).norm() / plain[at].norm()), rel=0.01)


def test_without_a_loss_or_an_optimizer_it_says_so() -> None:
    _, text = train("break 3", "continue", "scale 0 2", "diff --step", DIFF, "undo all", "delete", "continue")
    assert "the output is not a loss: it must be one number with a gradient" in text
    assert "no optimizer has stepped yet" in text


def test_an_edit_that_changes_nothing_changes_no_bit_of_the_step() -> None:
    _, text = train("break 3 if forward == 2", "continue", "scale 0 1", DIFF, "continue")
    assert "all gradients and new weights have the same bits" in text


def row_of(text: str, name: str) -> list[float]:
    words = text.partition("after the step by")[2].partition(f"{name} ")[2].split()
    return [float(word) for word in words[:2]]


def test_in_the_middle_of_a_forward_the_random_numbers_are_those_of_its_beginning() -> None:
    """The dropout has drawn when the run stops after it. Both futures must draw the same numbers again."""
    lines = ("continue", "edit 3 out * 3", DIFF, "undo", "continue")
    _, first = train("break Sequential enter if forward == 3", *lines)
    state, second = train("break 3 if forward == 3", *lines)
    assert row_of(first, "3.weight") == row_of(second, "3.weight")
    assert "random numbers" not in second
    bare, _ = train()
    assert all(torch.equal(a, b) for a, b in zip(bare, state, strict=True))


def test_it_says_so_where_the_beginning_was_not_kept() -> None:
    sweep = "patch --sweep 0 from torch.zeros(3, 4) metric out.sum()"
    _, text = train("back off", "break 3", "continue", "whatif scale 0 2", sweep, "delete", "continue")
    assert text.count("these forwards draw other random numbers than the run") == 2
