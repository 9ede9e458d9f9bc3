"""An edit where its call runs again: after `back` and `restart`, and in a recomputation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo import console_on, taps_on

X = torch.linspace(-1, 1, 12).view(3, 4)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def forwards(model: nn.Module, *lines: str, count: int = 4) -> tuple[list[Tensor], str]:
    torch.manual_seed(1)
    console, seen = console_on(model, lines)
    with console:
        outputs = [model(X) for _ in range(count)]
    assert not seen.bugs and not taps_on(model), seen.text
    return outputs, " ".join(seen.text.split())


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


EDITS = [
    "edit 0 out * 2 for 2",
    "edit 0 out * 2 always",
    "edit 0 out * 2 call 1 for 3",
    "edit 2 out * 0 for 1",
    "ablate 0 noise for 2",
    "edit Sequential out * 2 for 2",
    "edit Sequential inp = inp * 2 for 2",
    "skip 1 --bare for 2",
]


@pytest.mark.parametrize("line", EDITS)
@pytest.mark.parametrize("stop", ["2", "Sequential"])
@pytest.mark.parametrize("back", ["back", "restart"])
def test_going_back_counts_a_call_once(line: str, stop: str, back: str) -> None:
    wanted, _ = forwards(small(), line, "continue")
    found, text = forwards(small(), line, f"break {stop}", "continue", back, "delete 2", "continue")
    assert same(found, wanted) and "✗" not in text, text


def test_ignored_calls_are_counted_once_as_well() -> None:
    lines = ("edit 0 out * 2", "ignore 1 2")
    wanted, _ = forwards(small(), *lines, "continue")
    found, text = forwards(small(), *lines, "break 2", "continue", "back", "back", "delete 2", "continue")
    assert same(found, wanted), text


def test_how_often_it_acted_is_told_without_the_runs_that_were_left() -> None:
    lines = ("edit 0 out * 2", "break 2", "continue", "back 3", "next", "perturbed?", "delete 2")
    _, text = forwards(small(), *lines)
    assert "0: acted once" in text.partition("perturbed?")[2]


def test_for_and_always_exclude_each_other() -> None:
    _, text = forwards(small(), "edit 0 out for 2 always")
    assert "`for N` and `always` exclude each other" in text


# --- set ---


def test_what_was_set_is_set_again_in_the_second_run() -> None:
    wanted, _ = forwards(small(), "break 0", "continue", "set out = out * 0", "delete", "continue")
    lines = ("break 0", "continue", "set out = out * 0", "delete", "until 2", "back", "continue")
    found, text = forwards(small(), *lines)
    assert same(found, wanted) and "came back to the same bits" in text, text


def test_what_was_undone_is_not_set_again() -> None:
    wanted, _ = forwards(small())
    lines = ("break 0", "continue", "set out = out * 0", "next", "undo", "restart", "delete", "continue")
    found, text = forwards(small(), *lines)
    assert same(found, wanted), text
    assert "forward 1 went on with its value; if it still runs, `restart` begins it again" in text


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inner, self.reentrant = small(), reentrant

    def forward(self, x: Tensor) -> Any:
        if self.reentrant is None:
            return self.inner(x)
        x = x.clone().requires_grad_()
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def gradients(model: nn.Module, *lines: str) -> list[Tensor | None]:
    torch.manual_seed(1)
    console, seen = console_on(model, lines)
    with console:
        model(X).square().sum().backward()
    assert not seen.bugs, seen.text
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("line", ["set out = out * 2", "set out[0] = 1", "set inp = inp * 3"])
def test_what_was_set_acts_again_in_the_recomputation_of_a_checkpoint(line: str, reentrant: bool) -> None:
    phase = "enter" if "inp" in line else "exit"
    lines = (f"break inner.2 {phase}", "continue", line, "delete", "continue")
    wanted, found = gradients(Checkpointed(None), *lines), gradients(Checkpointed(reentrant), *lines)
    for one, other in zip(found, wanted, strict=True):
        assert one is not None and other is not None and torch.allclose(one, other, rtol=1e-6)


def test_a_set_is_not_listed_as_a_point_and_acts_in_no_later_call() -> None:
    plain, _ = forwards(small())
    lines = ("break 2", "continue", "set out = 0", "delete 1", "info breaks", "continue")
    found, text = forwards(small(), *lines)
    assert not found[0].any() and same(found[1:], plain[1:])
    assert "edit 2" not in text.partition("info breaks")[2], text


@pytest.mark.parametrize(
    "line, said", [("edit 0 out * 2", "edits"), ("set model.0.weight[0] = 0", "weights"), ("undo", "edits")]
)
def test_if_the_bits_differ_because_of_the_user_it_says_so(line: str, said: str) -> None:
    lines = ("edit 0 out * 3", "break 2", "continue", "back", line, "back", "delete", "continue")
    _, text = forwards(small().requires_grad_(False), *lines)
    assert f"outputs differ; you have changed {said} since" in text, text
