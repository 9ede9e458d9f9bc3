"""A verdict is true: healthy models are not called ill, and what is wrong is called by its name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerstep import DebugConsole
from layerstep.frontends.terminal.prompt import status_of
from layerstep.layers.anomalies import anomalies_in
from layerstep.render.screen import to_text
from layerstep.views import View

DRAW = torch.Generator().manual_seed(0)


def said(model: nn.Module, given: Tensor, *lines: str) -> str:
    """The answers to some lines where the model has just run, all that its layers gave out in view."""
    answers: list[View] = []
    stop = f"break type:{type(model).__name__}"
    console = DebugConsole(model, commands=["record ** --tensors", stop, "continue", *lines, "delete"])
    console.session.listen(lambda message: answers.append(message.view) if message.line in lines else None)
    model(given).float().square().mean().backward()
    console.run(given)
    return "\n".join(to_text(view, width=100) for view in answers)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(x + self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cells, self.head = nn.Embedding(50, 32), nn.LSTM(32, 48, 2), nn.Linear(48, 50)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(self.table(x))[0])
        return out


class Masked(nn.Module):
    """Attention with an additive mask of -1e9; the last queries see nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.arange(x.shape[1]) < x.shape[1] - 3
        allowed = seen[:, None] & seen[None, :]
        scores = q @ k.transpose(-2, -1) / 4 + torch.where(allowed, 0.0, -1e9)
        mixed: Tensor = self.softmax(scores) @ v
        return mixed


def healthy(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if name == "gpt2":
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=99, n_positions=32)
        inner = transformers.GPT2LMHeadModel(config)

        class Logits(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = self.inner(x).logits
                return logits

        return Logits(), torch.randint(0, 99, (4, 24))
    if name == "resnet":
        layers = (nn.Conv2d(3, 16, 3), nn.ReLU(), Block(16), nn.MaxPool2d(2), Block(16), nn.Flatten())
        return nn.Sequential(*layers, nn.LazyLinear(10)), torch.randn(8, 3, 14, 14)
    if name == "lstm":
        return Recurrent(), torch.randint(0, 50, (20, 8))
    if name == "masked":
        return Masked(), torch.randn(2, 24, 16)
    layers = (nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.SiLU())
    return nn.Sequential(*layers, nn.Linear(64, 8), nn.Softmax(-1)), torch.randn(256, 20)


@pytest.mark.parametrize("name", ["gpt2", "resnet", "lstm", "mlp", "masked"])
def test_a_healthy_model_raises_no_alarm(name: str) -> None:
    model, given = healthy(name)
    text = said(model, given, "anomalies **", "stability **")
    assert "nothing odd in" in text and "nothing is near its limits" in text, text


@pytest.mark.parametrize("squash", [F.relu, F.gelu, F.silu, torch.sigmoid, torch.exp, torch.square])
def test_a_one_sided_distribution_has_no_outliers(squash: object) -> None:
    values = squash(torch.randn(64, 256, generator=DRAW))  # type: ignore[operator]
    for shift in (0.0, -0.3, 0.3):
        assert not [each for each in anomalies_in(values + shift, nn.Identity()) if each.what == "outlier"]


def test_a_far_value_is_still_an_outlier() -> None:
    values = torch.randn(64, 256, generator=DRAW)
    values[3, 7] = 400.0
    assert [each.what for each in anomalies_in(values, nn.Identity())] == ["outlier"]


def test_a_model_that_has_exploded_is_told_so_and_not_about_f16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(60)  # type: ignore[union-attr, operator]
    text = said(model, torch.randn(8, 16), "anomalies **", "stability **")
    assert "exploded" in text and "f16" not in text


def test_an_additive_mask_is_no_value() -> None:
    scores = torch.randn(4, 8, 32, 32, generator=DRAW)
    for fill in (-1e4, -1e9, torch.finfo(torch.float32).min):
        masked = scores + torch.full((32, 32), fill).triu(1)
        assert anomalies_in(masked, nn.Identity()) == []
    values = -torch.rand(64, 64, generator=DRAW) * 1e9
    assert [each.what for each in anomalies_in(values, nn.Identity())] == ["exploded"]


def test_a_run_without_zero_grad_is_not_called_healthy() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    console = DebugConsole(model, commands=["grad record"])
    with console:
        for _ in range(6):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        text = to_text(console.execute("grad trend") or pytest.fail("no answer"), width=100)
    assert "zero_grad() missing?" in text and "ProblemsDetected" in text and "Healthy" not in text


def test_the_toolbar_knows_where_the_run_stands() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    console = DebugConsole(
        model, commands=["break 0 backward", "break 2", "continue", "continue", "continue"]
    )
    seen = [status_of(console.session)]
    console.session.listen(
        lambda message: seen.append(status_of(console.session)) if message.kind == "stop" else None
    )
    with console:
        model(torch.randn(2, 4)).sum().backward()
    assert seen[0][0] == "not started"
    assert seen[1][0] == "2" and "backward" not in seen[1] and "train" in seen[1]
    assert seen[2][0] == "0" and "backward" in seen[2] and "forward 1" in seen[2]
