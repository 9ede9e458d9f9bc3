"""The architecture: counts, blocks, what a forward does not call, what is odd, and bounded output."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.layers.architecture import Architecture, Forward, describe
from layerstep.module_paths.models import Models
from layerstep.render.screen import to_text


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.spare = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.shift = nn.Parameter(torch.zeros(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.empty = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).mean((2, 3)) + self.shift
        for layer in self.layers[:2]:
            x = layer(x)
        x = x[:, None]
        return self.attention(x, x, x)[0]  # type: ignore[no-any-return]


def shown(model: nn.Module, given: Tensor, *lines: str, stop: str) -> list[str]:
    console = DebugConsole(model, commands=[f"break {stop}", "continue", *lines], output=io.StringIO())
    answers: list[Any] = []
    console.session.listen(answers.append)
    console.run(given)
    return [to_text(each.view, width=100) for each in answers if each.line in lines]


def described(model: nn.Module, inside: str = "", **options: Any) -> Architecture:
    models = Models()
    models.add(model, "")
    return describe(models, inside, **options)


def test_the_counts_are_those_of_torch() -> None:
    model = Net()
    model.layers[0].requires_grad_(False)
    found = described(model)
    parameters = list(model.parameters())
    assert found.parameters == sum(p.numel() for p in parameters)
    assert found.trainable == sum(p.numel() for p in parameters if p.requires_grad)
    assert found.bytes == sum(p.nbytes for p in parameters)
    assert found.buffer_bytes == sum(b.nbytes for b in model.buffers())
    assert found.modules == len(list(model.modules()))
    assert found.depth == 3
    assert sum(block.count * block.parameters for block in found.blocks) == found.parameters
    assert found.uncalled is None and found.flops is None


def test_a_tied_parameter_counts_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    found = described(model)
    assert (found.parameters, found.tied) == (40, 1)


def test_equal_neighbours_are_one_block_and_a_large_part_is_opened() -> None:
    model = nn.ModuleDict(
        {"first": nn.Linear(4, 4), "body": nn.Sequential(*(nn.Linear(9, 9) for _ in range(5)))}
    )
    blocks = {block.path: block for block in described(model).blocks}
    assert list(blocks) == ["first", "body.0"]
    assert (blocks["body.0"].count, blocks["body.0"].last) == (5, "body.4")


def test_dtypes_and_lazy_parameters() -> None:
    found = described(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half(), nn.LazyLinear(3)))
    assert dict(found.dtypes) == {"f32": 2, "f16": 2}
    assert (found.lazy, found.parameters) == (2, 12)


def test_odd_weights_are_named() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    nn.init.zeros_(model[1].weight)
    assert [name for name, _ in described(model).odd_weights] == ["1.weight"]


def test_at_a_stop_it_tells_what_the_forward_does() -> None:
    (text,) = shown(Net(), torch.randn(2, 3, 8, 8), "architecture", stop="conv")
    assert "not called  spare, layers.2\n" in text
    assert "conv.0.bias (before conv.1)" in text
    assert "2×8×6×6" in text and "of FLOP" in text


def test_a_module_whose_weights_are_read_elsewhere_is_no_idle_one() -> None:
    model = Net()
    x = torch.randn(2, 3, 8, 8)
    (before,) = shown(model, x, "architecture", stop="conv")
    (model(x).sum() + model.spare[0].weight.sum()).backward()
    (after,) = shown(model, x, "architecture", stop="conv")
    assert "spare" in before.partition("not called")[2].splitlines()[0]
    assert "spare" not in after.partition("not called")[2].splitlines()[0]


def test_flops_are_those_of_the_flops_command() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    flops, whole, part = shown(model, torch.randn(3, 16), "flops", "architecture", "architecture 0", stop="1")
    both = next(line for line in flops.splitlines() if line.startswith("all")).split()[5]
    assert whole.partition("FLOP")[2].split()[0] == both
    forward_and_backward = 2 * (2 * 3 * 16 * 16)  # the input needs no gradient
    assert float(part.partition("FLOP")[2].split()[0]) == pytest.approx(forward_and_backward / 1e3, rel=5e-3)


def test_the_rerun_changes_nothing() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.randn(8, 4)
    state = torch.get_rng_state()
    plain = model(x)
    buffers = [b.clone() for b in model.buffers()]
    torch.set_rng_state(state)
    model[1].reset_running_stats()
    console = DebugConsole(model, commands=["break 1", "continue", "architecture"], output=io.StringIO())
    assert torch.equal(console.run(x), plain)
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))


@pytest.mark.parametrize("alike", [True, False])
def test_the_output_is_bounded(alike: bool) -> None:
    wide = [nn.Sequential(nn.Linear(2, 2 if alike else 1 + i % 2), nn.ReLU()) for i in range(3_400)]
    model = nn.ModuleDict({"body": nn.ModuleList(wide), "head": nn.Linear(2, 2)})
    console = DebugConsole(model, output=io.StringIO())
    text = to_text(console.execute("architecture"), width=80)  # type: ignore[arg-type]
    assert len(text.splitlines()) <= 40
    assert all(len(line) <= 80 for line in text.splitlines())


def test_many_uncalled_modules_are_counted() -> None:
    model = nn.ModuleDict({str(i): nn.Linear(2, 2) for i in range(3_000)})
    forward = Forward()
    forward.note(model, None)
    forward.note(model["0"], torch.zeros(1))
    found = described(model, forward=forward)
    assert found.uncalled is not None and len(found.uncalled) == 2_999
