"""Fifty random edits in twenty forwards, then `undo all`: the next forward has the bits of the bare run."""

from __future__ import annotations

import random

import pytest
import torch

from zoo import console_on, taps_on

EDITS = (
    "edit {path} out",
    "scale {path} 0.5",
    "scale {path} 0.5 for 2",
    "ablate {path}",
    "ablate {path} mean",
    "ablate {path} noise",
    "ablate {path} noise --size 0.1 call 1",
    "edit {path} inp = inp * 2",
    "edit {path} out * 2 if forward % 2",
    "edit {path}.grad grad * 2",
    "skip {path} for 1",
    "edit {weight}.grad grad * 0.5",
    "set model.{weight} = 0.5",
    "set model.{weight}[0] = 3",
)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU())
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("number", range(3))
def test_after_undo_all_nothing_of_fifty_edits_is_left(number: int) -> None:
    torch.manual_seed(number)
    model, draw = Net(), random.Random(number)
    x = torch.randn(3, 5, 8)
    bare, weights = model(x), {name: each.clone() for name, each in model.state_dict().items()}
    versions = {name: each._version for name, each in model.named_parameters()}
    paths = [
        name for name, part in model.named_modules() if name and not isinstance(part, torch.nn.ModuleList)
    ]
    names = list(weights)
    console, seen = console_on(model, [])
    changed = False
    with console:
        model(x)  # the model is known from here on
        for step in range(50):
            line = draw.choice(EDITS).format(path=draw.choice(paths), weight=draw.choice(names))
            console.execute(line)
            if draw.random() < 0.2:
                console.execute(draw.choice(("undo", "redo")))
            if step % 3 == 0:
                changed |= not torch.equal(model(x), bare)
        console.execute("undo all")
        assert torch.equal(model(x), bare), seen.text
        assert "no:" in str(console.execute("perturbed?"))
    assert changed and not seen.bugs and not taps_on(model), seen.text
    for name, each in model.state_dict().items():
        assert torch.equal(each, weights[name]), name
    assert {name: each._version for name, each in model.named_parameters()} == versions
