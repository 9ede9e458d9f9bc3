"""What is said about a rerun is the reason: an op is no module, a fused kernel is no change of state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo import console_on


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.lin(x)) * 2


def test_again_at_an_op_runs_the_module_around_it() -> None:
    model = Net()
    console, seen = console_on(
        model, ["break Net enter", "continue", "step op", "again", "step op", "again", "detach"]
    )
    with console:
        model(torch.ones(2, 4))
    answers = [text for text in seen.text.splitlines() if " gave " in text]
    assert answers == ["· lin gave f32[2, 3]", "· Net gave f32[2, 3]"]
    assert "another output" not in seen.text
    assert not seen.bugs


def test_a_fused_layer_is_named_as_the_reason() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True).eval()
    lines = ["break TransformerEncoderLayer", "continue", "shadow fp64", "again", "continue"]
    console, seen = console_on(model, lines)
    with console, torch.no_grad():
        model(torch.randn(3, 9, 16))
    words = " ".join(seen.text.split())
    assert "inputs" not in words.rpartition("shadow fp64")[2]
    assert "changed since" not in words
    if "differs from its output" in words or "another output" in words:
        assert "fused kernel" in words
    assert not seen.bugs
